"""Frames over TCP."""
