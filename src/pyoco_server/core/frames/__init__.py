"""The frame protocol, without I/O."""
