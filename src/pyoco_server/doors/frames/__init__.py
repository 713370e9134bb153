"""The frame protocol over TCP."""
