"""Records as earlier versions wrote them."""

from __future__ import annotations

from dataclasses import replace

from pyoco_server.core.run import HANDED_BACK, Run, with_this_one

__all__ = ["left_running"]


def left_running(run: Run, now: float) -> Run:
    """A run that a worker of version 0.6 has put back: still RUNNING, without an owner."""
    earlier = with_this_one(run, HANDED_BACK, now)
    return replace(run, attempt_id=None, worker_id=None, instance_id=None, earlier_attempts=earlier, updated_at=now)
