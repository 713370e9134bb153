"""Large bytes: wheels, archives, results."""
