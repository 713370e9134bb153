"""What a door counts of its jobs: the same as every process that answers for attempts."""

from __future__ import annotations

from pyoco_server.loops.programs.counting import count_end, count_put_back

__all__ = ["count_end", "count_put_back"]
