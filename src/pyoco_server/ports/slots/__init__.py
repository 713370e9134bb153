"""The caps on concurrent programs of a client."""
