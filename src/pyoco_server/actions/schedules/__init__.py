"""The operations on schedules, and the handling of their ticks."""
