"""Large results and outputs of runs."""
