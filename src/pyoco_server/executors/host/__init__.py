"""Warm child processes that run flows, one at a time each.

A task that crashes, hangs or exhausts memory affects its host and nothing else; a host can be killed, which a thread
cannot; and the engine's capture of stdout, which is process-wide, never mixes two runs.
"""
