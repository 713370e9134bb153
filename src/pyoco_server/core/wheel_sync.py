"""What a worker has of the wheel registry (section 12.3)."""

from __future__ import annotations

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
    "Trouble",
    "read_installed",
    "trouble_again",
]

#: However often a wheel has failed, it is tried again after this time.
RETRY_SECONDS_MAX = 300.0


@dataclass(frozen=True)
class Environment:
    """What runs see of the registry. It never changes: another set of wheels is another environment."""

    #: Directories for `sys.path`, one for each wheel, behind the standard library and before installed packages.
    paths: tuple[str, ...] = ()
    #: Top-level modules that these wheels bring: a flow.yaml may call what is in them.
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
    """An entry of the manifest; None when it is none. Members it does not know are passed over."""
    if not isinstance(document, dict) or not all(isinstance(document.get(name), form) for name, form in _FORMS.items()):
        return None
    known = {name: document[name] for name in _FORMS}
    return InstalledWheel(**{**known, "tags": tuple(map(str, known["tags"]))})


class Hurdle(Enum):
    """What a wheel failed at."""

    #: Its bytes, pip, the disk.
    INSTALLING = auto()
    #: Something it needs is not there; that may change with the registry.
    NEEDS = auto()
    #: No host starts with it, or without it.
    HOSTS = auto()


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A wheel that failed, and when it is tried again."""

    nuid: str
    hurdle: Hurdle
    error: str
    times: int
    again_at: float


def trouble_again(last: Trouble | None, nuid: str, hurdle: Hurdle, error: str, now: float, every: float) -> Trouble:
    """The same upload that fails again and again is tried after 1, 2, 4, ... intervals, at least every 5 minutes."""
    times = last.times + 1 if last is not None and last.nuid == nuid else 1
    pause = min(every * 2 ** min(times - 1, 30), max(every, RETRY_SECONDS_MAX))
    return Trouble(nuid=nuid, hurdle=hurdle, error=error, times=times, again_at=now + pause)


@dataclass(frozen=True)
class FailedWheel:
    wheel_name: str
    error: str


@dataclass(frozen=True, kw_only=True)
class SyncReport:
    """FLOW-243: the outcome of one look at the registry."""

    last_sync_at: float
    #: Everything that is installed now, by wheel name.
    installed: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    removed: tuple[str, ...] = ()
    failed: tuple[FailedWheel, ...] = ()

    @property
    def status(self) -> str:
        return "error" if self.failed else "ok"

    def document(self) -> dict[str, Any]:
        """As the registry record holds it."""
        return {
            "enabled": True,
            "last_sync_at": self.last_sync_at,
            "status": self.status,
            "installed": list(self.installed),
            "skipped": [asdict(item) for item in self.skipped],
            "removed": list(self.removed),
            "failed": [asdict(item) for item in self.failed],
        }
