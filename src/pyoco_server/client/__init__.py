"""Internals of the HTTP client: requests, response types and retries. The public module is `http_client`."""
