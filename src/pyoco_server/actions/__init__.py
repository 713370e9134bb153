"""Use cases: one verb per file, implemented through ports only. Docstrings state the order of writes, the cost, and
what a crash leaves behind."""
