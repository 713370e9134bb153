"""What can be known of a deployment by looking at it."""
