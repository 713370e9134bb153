"""Clients that speak frames."""
