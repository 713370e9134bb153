"""Flows in a simulation."""
