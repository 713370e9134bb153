"""Executes packs: in warm child processes, one at a time each, within a timebox.

A pack that crashes, hangs or exhausts memory affects its process and nothing else; and one that ignores a cancel
request can be killed.
"""
