"""The streams that a process has found or created in NATS, and so expects to find there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyoco_server.core.holds import Holds

__all__ = ["Expected"]


@dataclass(frozen=True)
class Expected:
    """One stream, with the settings that it had when it was last looked up."""

    config: dict[str, Any]
    holds: Holds
