"""The queue of programs."""
