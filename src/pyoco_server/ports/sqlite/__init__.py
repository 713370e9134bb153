"""Our thin layer over SQLite, shared by adapters that keep a cache in a file."""
