"""Runs an app in this process, for tests: the gateway and a worker on the memory adapters, in virtual time."""
