"""Executing runs. An executor uses no store, queue or door."""
