"""Priced runs in a simulation."""
