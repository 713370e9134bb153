"""Programs (runs of kind exec) in a simulation."""
