"""The dashboard: one page, and the files it is made of. It asks the API, like any other client."""
