"""Clients of the frame protocol."""
