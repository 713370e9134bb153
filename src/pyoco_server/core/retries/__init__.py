"""Retry policies: how often work is tried, on which failures, and how long it waits between two tries."""
