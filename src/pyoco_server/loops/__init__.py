"""What runs for ever: one start/stop contract, one turn at a time."""
