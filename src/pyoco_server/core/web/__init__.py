"""Web access, without I/O: validation of addresses and URLs, decoding of bodies, extraction of title and text."""
