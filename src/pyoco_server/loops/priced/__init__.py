"""What runs for ever beside priced runs."""
