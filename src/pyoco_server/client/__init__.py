"""The HTTP client's own room: what may be asked, how answers look, when to ask again. Public is `http_client` alone."""
