"""Judgements that anybody can repeat: rules over a text, metrics over cases. Pure, and without a double."""
