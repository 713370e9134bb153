"""Lists and counts of runs: a cache, which is rebuilt if it is deleted."""
