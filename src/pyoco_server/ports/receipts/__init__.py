"""What was promised under an idempotency key."""
