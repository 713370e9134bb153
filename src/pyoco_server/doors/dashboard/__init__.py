"""The dashboard: its pages and their files. It calls the API, like any other client."""
