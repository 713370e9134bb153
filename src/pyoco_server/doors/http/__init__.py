"""The HTTP door. One table of operations defines the routes, the OpenAPI document and the list of open paths."""
