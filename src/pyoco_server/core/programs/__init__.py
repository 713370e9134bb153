"""Runs of programs: their records and the allowed changes of state."""
