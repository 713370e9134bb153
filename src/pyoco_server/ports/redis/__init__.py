"""Our thin layer over Redis, shared by the budget and the hints."""
