"""Many runs at once, for asyncio: the counterparts of `pyoco_server.gather` and `pyoco_server.as_completed`."""

from __future__ import annotations

from pyoco_server.app.aio_run_set import as_completed, gather

__all__ = ["as_completed", "gather"]
