"""The log of a run: what its attempts print, as lines. How lines are cut, bounded, stored, read and shown."""
