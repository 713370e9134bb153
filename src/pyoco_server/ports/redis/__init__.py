"""Our thin layer on Redis, shared by the budget and the hints."""
