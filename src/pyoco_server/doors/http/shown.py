"""A run as every route shows it."""

from __future__ import annotations

from typing import Any

from pyoco_server.core.change import last_change
from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import shown_snapshot

__all__ = ["shown_run"]


def shown_run(run: Run) -> dict[str, Any]:
    """The whole record, and what last happened to it."""
    snapshot = shown_snapshot(run)
    change = last_change(run)
    by = {"kind": change.by.kind.value, "id": change.by.id}
    snapshot["last_change"] = {"what": change.what.value, "at": change.at, "by": by}
    return snapshot
