"""The port for logs of runs, and its adapter."""
