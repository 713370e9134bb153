"""Our thin layer over the AWS SDK: clients that stay open, and one word for every outage."""
