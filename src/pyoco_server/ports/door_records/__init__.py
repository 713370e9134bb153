"""The registry of doors."""
