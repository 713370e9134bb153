"""What may be done with priced runs and their money."""
