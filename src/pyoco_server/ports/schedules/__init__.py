"""Schedules, and the history of their ticks."""
