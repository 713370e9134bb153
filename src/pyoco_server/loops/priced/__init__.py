"""What runs for ever for priced runs: the keeper's duties, and the worker's lane."""
