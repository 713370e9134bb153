"""The queue of priced runs: which run is to be started, and nothing else about it."""
