"""The model of priced runs: their money, their states, and the only allowed transitions."""
