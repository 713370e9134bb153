"""What a worker has installed from the wheel registry (section 12.3)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum, auto
from typing import Any

from pyoco_server.core.wheel import Skipped

__all__ = [
    "NO_WHEELS",
    "Environment",
    "FailedWheel",
    "Hurdle",
    "InstalledWheel",
    "SyncReport",
    "WheelTrouble",
    "read_installed",
    "read_trouble",
    "trouble_again",
]

#: The longest delay before a failed wheel is retried, however often it has failed.
RETRY_SECONDS_MAX = 300.0
#: The wheel report is part of the worker's record, which is written at every heartbeat and sent to every client that
#: lists workers. So each list is limited, in entries and in bytes as JSON, and all of it stays below 32 KiB.
_ENTRIES_MAX = 50
_BYTES_MAX = {"installed": 6144, "installing": 2048, "skipped": 6144, "removed": 4096, "failed": 12288}
_TEXT_CHARACTERS_MAX = {"wheel_name": 255, "reason": 200, "error": 700}


@dataclass(frozen=True)
class Environment:
    """The wheels that runs can import. Immutable: another set of wheels is another environment."""

    #: Directories for `sys.path`, one per wheel, after the standard library and before installed packages.
    paths: tuple[str, ...] = ()
    #: Top-level modules of these wheels: a flow.yaml may call what they contain.
    modules: tuple[str, ...] = ()


NO_WHEELS = Environment()


@dataclass(frozen=True, kw_only=True)
class InstalledWheel:
    """FLOW-238: one entry of the manifest (`WheelSyncState`)."""

    wheel_name: str
    package_name: str
    package_version: str
    nuid: str
    size_bytes: int
    sha256_hex: str
    tags: tuple[str, ...]
    installed_at: float


_FORMS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("wheel_name", "package_name", "package_version", "nuid", "sha256_hex"), str),
    "size_bytes": int,
    "tags": list,
    "installed_at": (int, float),
}


def read_installed(document: object) -> InstalledWheel | None:
    """Return an entry of the manifest, or None if it is invalid. Unknown members are ignored."""
    if not isinstance(document, dict) or not all(isinstance(document.get(name), form) for name, form in _FORMS.items()):
        return None
    known = {name: document[name] for name in _FORMS}
    return InstalledWheel(**{**known, "tags": tuple(map(str, known["tags"]))})


class Hurdle(Enum):
    """The step at which a wheel failed."""

    #: Its bytes, pip, or the disk.
    INSTALLING = auto()
    #: A requirement is not available; that may change with the registry.
    NEEDS = auto()
    #: No host process starts with it, or without it.
    HOSTS = auto()


@dataclass(frozen=True, kw_only=True)
class WheelTrouble:
    """A failed wheel, and the time of its next try."""

    nuid: str
    hurdle: Hurdle
    error: str
    times: int
    again_at: float


def trouble_again(
    last: WheelTrouble | None, nuid: str, hurdle: Hurdle, error: str, now: float, every: float
) -> WheelTrouble:
    """Record a failure. The same upload is retried after 1, 2, 4, ... intervals, at least every 5 minutes."""
    times = last.times + 1 if last is not None and last.nuid == nuid else 1
    pause = min(every * 2 ** min(times - 1, 30), max(every, RETRY_SECONDS_MAX))
    return WheelTrouble(nuid=nuid, hurdle=hurdle, error=error, times=times, again_at=now + pause)


def read_trouble(document: object) -> WheelTrouble | None:
    """Return the stored failure of a wheel that no host process started with, or None if it is invalid. It is due
    immediately."""
    if not isinstance(document, dict):
        return None
    nuid, error, times = document.get("nuid"), document.get("error"), document.get("times")
    if not isinstance(nuid, str) or not isinstance(error, str) or not isinstance(times, int):
        return None
    return WheelTrouble(nuid=nuid, hurdle=Hurdle.HOSTS, error=error, times=max(1, times), again_at=0.0)


@dataclass(frozen=True)
class FailedWheel:
    wheel_name: str
    error: str


@dataclass(frozen=True, kw_only=True)
class SyncReport:
    """FLOW-243: the outcome of one sync with the registry."""

    last_sync_at: float
    #: All wheels installed now, by name.
    installed: tuple[str, ...] = ()
    #: Wheels whose installation takes longer than one sync; runs cannot import them yet.
    installing: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    removed: tuple[str, ...] = ()
    failed: tuple[FailedWheel, ...] = ()

    @property
    def status(self) -> str:
        return "error" if self.failed else "ok"

    def document(self) -> dict[str, Any]:
        """Return the bounded form for the registry record. Where a list is cut, `<list>_more` is the number of omitted
        entries."""
        document: dict[str, Any] = {"enabled": True, "last_sync_at": self.last_sync_at, "status": self.status}
        more = {}
        for name in _BYTES_MAX:
            items = getattr(self, name)
            document[name] = _as_fits(name, items)
            if len(document[name]) < len(items):
                more[f"{name}_more"] = len(items) - len(document[name])
        return document | more


def _as_fits(name: str, items: Iterable[str | Skipped | FailedWheel]) -> list[Any]:
    """Return the first entries, as many as fit. At least one always fits."""
    found: list[Any] = []
    room = _BYTES_MAX[name]
    for item in items:
        entry = (
            _short("wheel_name", item) if isinstance(item, str) else {k: _short(k, v) for k, v in asdict(item).items()}
        )
        room -= len(json.dumps(entry)) + 2  # escaped: no encoding of it is larger
        if room < 0 or len(found) == _ENTRIES_MAX:
            break
        found.append(entry)
    return found


def _short(kind: str, text: str) -> str:
    limit = _TEXT_CHARACTERS_MAX[kind]
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
