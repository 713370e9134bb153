"""A small company's flows, for pictures and for trying the dashboard out."""
