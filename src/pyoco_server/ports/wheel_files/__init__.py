"""Validation of wheel files before anyone may install them."""
