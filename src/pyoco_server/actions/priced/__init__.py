"""Use cases of priced runs and their money: one verb per file, implemented through ports only, without floats."""
