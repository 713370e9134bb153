"""What runs for ever beside programs."""
