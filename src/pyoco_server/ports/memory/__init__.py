"""Shared parts of the adapters in memory: stores by name, entries that expire, and a simulated network."""
