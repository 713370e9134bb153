"""The history of the wheel registry."""
