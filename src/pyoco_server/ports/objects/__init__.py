"""Large byte objects: wheels, archives, results."""
