"""The public module of `compact_run_snapshot` (section 18.6 of the contract)."""

from pyoco_server.core.snapshot import compact_run_snapshot
from pyoco_server.errors import SnapshotTooLargeError

__all__ = ["SnapshotTooLargeError", "compact_run_snapshot"]
