"""On how many nodes our streams are kept."""
