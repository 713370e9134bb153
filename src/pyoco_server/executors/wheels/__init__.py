"""A worker's own copy of the wheels it wants, each in a directory of its own that never changes.

Runs see them through `sys.path`. So a new version is another directory, what runs goes on with the old one, and the
worker's own packages are never touched.
"""
