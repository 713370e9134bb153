"""The records of all flow and program runs."""
