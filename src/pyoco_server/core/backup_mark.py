"""What a stream says of the restore that is making it. When that has come to its end, nothing is said any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Mark", "mark_of", "marked", "unmarked"]

_KEY = "pyoco.restored"
_UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Mark:
    """From which backup a stream comes, and how it was when all of it had arrived."""

    backup_id: str
    #: Its last sequence and how many messages it held. None: something is missing yet.
    end: tuple[int, int] | None = None


def marked(config: Mapping[str, Any], mark: Mark) -> dict[str, Any]:
    """The configuration of a stream that says so."""
    words = [_UNFINISHED, mark.backup_id] if mark.end is None else [mark.backup_id, *map(str, mark.end)]
    return _with(config, {_KEY: " ".join(words)})


def unmarked(config: Mapping[str, Any]) -> dict[str, Any]:
    return _with(config, {})


def mark_of(config: Mapping[str, Any]) -> Mark | None:
    """None: no restore is at work on it, as far as it says."""
    words = str((config.get("metadata") or {}).get(_KEY, "")).split(" ")
    if len(words) == 2 and words[0] == _UNFINISHED:
        return Mark(words[1])
    if len(words) == 3 and words[1].isdecimal() and words[2].isdecimal():
        return Mark(words[0], (int(words[1]), int(words[2])))
    return None


def _with(config: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """Without what the server itself has noted in it."""
    noted = config.get("metadata") or {}
    kept = {name: value for name, value in noted.items() if name != _KEY and not name.startswith("_nats.")}
    return {**config, "metadata": {**kept, **said}}
