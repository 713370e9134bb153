"""Flows: reading a flow.yaml, and running what it says with the pyoco engine."""
