"""Which run each idempotency key stands for."""
