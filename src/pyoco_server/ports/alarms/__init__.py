"""The alarms of the clock."""
