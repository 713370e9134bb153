"""Outputs of tasks and results of runs as stored bytes: their encoding, and what a record says about them."""
