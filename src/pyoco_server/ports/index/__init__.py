"""Lists and counts of runs: a cache. Delete it, and it is rebuilt."""
