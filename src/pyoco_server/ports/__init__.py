"""The ports to everything outside the core.

One folder per port: `port.py` defines the protocol, its adapters are beside it.
"""
