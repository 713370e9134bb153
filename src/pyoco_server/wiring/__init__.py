"""Settings in, ports out: the only package that names an adapter."""
