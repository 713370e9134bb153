"""Input files of packs."""
