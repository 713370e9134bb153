"""What happened to the wheel registry."""
