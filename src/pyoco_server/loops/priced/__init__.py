"""Endless loops for priced runs: the keeper's duties, and the pack worker."""
