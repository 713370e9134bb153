"""Helpers for the proofs: scenes of real processes, what kills them, and what a proof reports."""
