"""The API keys of this server."""
