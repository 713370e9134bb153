"""`/v1`: priced runs. Every response states its cost; every error is a problem document (RFC 9457)."""
