"""Schedules in a simulation."""
