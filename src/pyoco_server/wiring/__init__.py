"""Build adapters from settings: the only package that names adapters."""
