"""The ids of schedules, ticks and keyed triggers, and the names under which they are stored and shown."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final

from pyoco_server.core.programs.names import tenant_token

__all__ = [
    "NAME_RULE",
    "RESERVED",
    "is_schedule_name",
    "jitter_of",
    "pack_key_of_tick",
    "schedule_key",
    "schedule_label",
    "tick_id",
    "trigger_id",
]

NAME_RULE: Final = "must be 1 to 64 letters, digits, '_' or '-', and begin with a letter or a digit"
#: A path below `/schedules` (SCHED-1).
RESERVED: Final = "preview"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


def is_schedule_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and text != RESERVED


def schedule_key(tenant_id: str | None, name: str) -> str:
    """Return the key of a schedule: one token of subjects and keys. Neither part of it can contain `=`."""
    return f"{'' if tenant_id is None else tenant_token(tenant_id)}={name}"


def schedule_label(name: str) -> str:
    return f"schedule:{name}"


def tick_id(schedule_id: str, tick: int) -> str:
    """SCHED-13"""
    return str(uuid.uuid5(uuid.UUID(schedule_id), f"tick:{tick}"))


def trigger_id(schedule_id: str, key: str) -> str:
    """SCHED-27"""
    return str(uuid.uuid5(uuid.UUID(schedule_id), f"trigger:{key}"))


def pack_key_of_tick(id_of_tick: str) -> str:
    """Return the idempotency key of a priced run (SCHED-13)."""
    return f"tick-{id_of_tick}"


def jitter_of(schedule_id: str, tick: int, most: float) -> float:
    """Return the delay of a tick, 0 to `most` seconds, the same whoever computes it (SCHED-6)."""
    if not most:
        return 0.0
    digest = hashlib.sha256(f"{schedule_id}:{tick}".encode()).digest()
    return round(most * int.from_bytes(digest[:8], "big") / 2**64, 3)
