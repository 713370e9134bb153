"""Captures what the code of a run prints and logs, in the process that executes it.

Standard output and standard error of a host are pipes, which its guard reads. The guard runs no foreign code, so a
flood of output costs neither the worker's event loop nor its memory; the worker receives finished batches.
"""
