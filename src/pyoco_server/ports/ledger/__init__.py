"""Priced runs, their money and its history, in one SQL database."""
