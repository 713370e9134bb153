"""The executors of the packs there are. Loaded by the processes that execute them, and by nothing else."""

from __future__ import annotations

from typing import Final

from pyoco_server.executors.packs import decision
from pyoco_server.executors.packs.port import Execute

__all__ = ["EXECUTORS"]

#: By name. A test compares them with `core.packs.PACKS`.
EXECUTORS: Final[dict[str, Execute]] = {"decision": decision.execute}
