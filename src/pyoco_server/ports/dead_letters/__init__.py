"""Dead letters: jobs set aside, with their reasons."""
