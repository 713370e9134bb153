"""The frame protocol, without a socket."""
