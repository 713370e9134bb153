"""Copies of everything that an installation stores in NATS, and the folder that contains them."""
