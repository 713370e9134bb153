"""Helpers for tests of programs: doors, routers, TCP workers and frames."""
