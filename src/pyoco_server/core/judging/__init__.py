"""Reproducible judgements: rules for a text, metrics for cases. Pure, and without floating point."""
