"""Loops that run programs, and repair their queues."""
