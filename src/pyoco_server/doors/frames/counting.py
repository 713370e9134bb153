"""Counts the jobs of a door, in the same way as every process that holds attempts."""

from __future__ import annotations

from pyoco_server.loops.programs.counting import count_end, count_put_back

__all__ = ["count_end", "count_put_back"]
