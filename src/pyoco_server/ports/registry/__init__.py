"""The workers there are, by their own word."""
