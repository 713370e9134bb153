"""The queue of priced runs. A message only says which run to start."""
