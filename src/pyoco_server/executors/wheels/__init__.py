"""A worker's own copy of its wheels, each in a directory of its own that never changes.

Runs import them through `sys.path`. A new version is installed to a new directory, active runs continue with the old
one, and the worker's own packages are never modified.
"""
