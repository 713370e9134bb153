"""The dead letters: jobs set aside, with their reasons."""
