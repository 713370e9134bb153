"""The HTTP door: one table of operations makes the routes, the OpenAPI document and the list of open paths."""
