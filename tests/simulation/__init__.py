"""Deterministic simulation: a whole deployment in one thread, in virtual time, from a seed."""
