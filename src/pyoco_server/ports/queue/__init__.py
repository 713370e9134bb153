"""Jobs queued for workers, and dead letters."""
