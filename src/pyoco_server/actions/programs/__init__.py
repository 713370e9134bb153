"""Actions on programs."""
