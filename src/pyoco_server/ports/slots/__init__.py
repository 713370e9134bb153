"""How many programs of a client run at once."""
