"""The history of programs, for people."""
