"""The number of replicas of our streams."""
