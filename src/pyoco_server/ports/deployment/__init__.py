"""Read-only inspection of a deployment."""
