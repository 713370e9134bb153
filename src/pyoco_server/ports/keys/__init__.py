"""The API keys that open this server."""
