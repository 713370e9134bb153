"""Programs: what a run of an executable is, and how it may change."""
