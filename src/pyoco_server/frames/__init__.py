"""The frame protocol over a socket: one connection, whole frames in, whole frames out."""
