"""The streams that a process has found or created in NATS, and therefore expects to exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyoco_server.core.holds import Holds

__all__ = ["Expected"]


@dataclass(frozen=True)
class Expected:
    """One stream with its last known settings."""

    config: dict[str, Any]
    holds: Holds
