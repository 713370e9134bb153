"""The history of programs, for operators."""
