"""Hints in Redis besides the budget, on which nothing may depend: locks, mappings, leases, rates."""
