"""Copies of everything an installation has stored in NATS, and the folder they lie in."""
