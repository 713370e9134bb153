"""Our thin layer over the AWS SDK: long-lived clients, and one exception for every outage."""
