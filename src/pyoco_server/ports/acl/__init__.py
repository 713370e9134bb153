"""Who may ask for which program, and who may run it."""
