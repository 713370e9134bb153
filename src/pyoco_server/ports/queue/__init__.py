"""Jobs on their way to a worker, and those set aside."""
