"""Schedules: when they tick, and what becomes of each tick. Pure functions over values."""
