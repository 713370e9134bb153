"""Background loops: one start/stop contract, one turn at a time."""
