"""Flows: reading a flow.yaml, and running it with the pyoco engine."""
