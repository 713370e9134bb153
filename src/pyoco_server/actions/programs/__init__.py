"""What may be done with a program."""
