"""Files that packs read."""
