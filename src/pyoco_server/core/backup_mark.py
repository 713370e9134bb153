"""What a stream says of the restore that is making it. When that has come to its end, nothing is said any more but when
it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Mark", "dated", "mark_of", "marked", "restored_at", "unmarked"]

_KEY = "pyoco.restored"
_UNFINISHED = "unfinished"
_AT_KEY = "pyoco.restored_at"
#: More would not fit where instants are kept.
_DIGITS_MAX = 18


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


def dated(config: Mapping[str, Any], at_us: int) -> dict[str, Any]:
    """The configuration of a stream that says, for good, when it was restored. Its own date may be that of the stream
    that was copied."""
    return {**config, "metadata": {**(config.get("metadata") or {}), _AT_KEY: str(at_us)}}


def restored_at(config: Mapping[str, Any]) -> int | None:
    """In microseconds, by the clock of the machine that restored it. None: never, as far as it says."""
    said = str((config.get("metadata") or {}).get(_AT_KEY, ""))
    return int(said) if said.isascii() and said.isdecimal() and len(said) <= _DIGITS_MAX else None


def _with(config: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """Without what the server itself has noted in it."""
    noted = config.get("metadata") or {}
    kept = {name: value for name, value in noted.items() if name != _KEY and not name.startswith("_nats.")}
    return {**config, "metadata": {**kept, **said}}
