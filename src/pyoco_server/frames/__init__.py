"""The frame protocol over a socket: reads and writes complete frames on one connection."""
