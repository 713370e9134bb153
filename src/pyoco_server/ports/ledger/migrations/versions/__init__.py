"""The steps. Each has a way back."""
