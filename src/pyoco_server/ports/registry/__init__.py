"""The registry of workers, as they announce themselves."""
