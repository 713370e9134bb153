"""The migrations. Each can be reverted."""
