"""The mark of an unfinished restore in the configuration of a stream. After the restore, only its time remains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["BackupMark", "dated", "mark_of", "marked", "restored_at", "unmarked"]

_KEY = "pyoco.restored"
_UNFINISHED = "unfinished"
_AT_KEY = "pyoco.restored_at"
#: Longer numbers do not fit where times are stored.
_DIGITS_MAX = 18


@dataclass(frozen=True)
class BackupMark:
    """The backup a stream is restored from, and its final state once all messages have arrived."""

    backup_id: str
    #: The last sequence and the number of messages. None: the restore is not complete.
    end: tuple[int, int] | None = None


def marked(config: Mapping[str, Any], mark: BackupMark) -> dict[str, Any]:
    """Return the stream configuration with this mark."""
    parts = [_UNFINISHED, mark.backup_id] if mark.end is None else [mark.backup_id, *map(str, mark.end)]
    return _with(config, {_KEY: " ".join(parts)})


def unmarked(config: Mapping[str, Any]) -> dict[str, Any]:
    return _with(config, {})


def mark_of(config: Mapping[str, Any]) -> BackupMark | None:
    """Return the mark of a restore in progress. None: the configuration has none."""
    parts = str((config.get("metadata") or {}).get(_KEY, "")).split(" ")
    if len(parts) == 2 and parts[0] == _UNFINISHED:
        return BackupMark(parts[1])
    if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
        return BackupMark(parts[0], (int(parts[1]), int(parts[2])))
    return None


def dated(config: Mapping[str, Any], at_us: int) -> dict[str, Any]:
    """Return the stream configuration with the time of its restore, which stays for good.

    The stream's own creation time may be that of the stream that was copied.
    """
    return {**config, "metadata": {**(config.get("metadata") or {}), _AT_KEY: str(at_us)}}


def restored_at(config: Mapping[str, Any]) -> int | None:
    """Return the time of the restore in microseconds, by the clock of the machine that made it. None: not recorded."""
    text = str((config.get("metadata") or {}).get(_AT_KEY, ""))
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else None


def _with(config: Mapping[str, Any], added: Mapping[str, str]) -> dict[str, Any]:
    """Replace the mark, and drop the members that the NATS server added itself."""
    noted = config.get("metadata") or {}
    kept = {name: value for name, value in noted.items() if name != _KEY and not name.startswith("_nats.")}
    return {**config, "metadata": {**kept, **added}}
