"""The result of a check: its severity, the problem, why it matters, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Level", "Remark", "age", "danger", "note", "ok", "size", "some", "warning", "worst"]


class Level(StrEnum):
    """The severity of a finding."""

    #: No problem.
    OK = "ok"
    #: Information.
    NOTE = "note"
    #: Nothing is lost or blocked so far.
    WARNING = "warning"
    #: Data may be lost, or work is blocked.
    DANGER = "danger"

    @property
    def rank(self) -> int:
        return list(Level).index(self)


@dataclass(frozen=True)
class Remark:
    """The result of a rule."""

    level: Level
    what: str
    #: Why it matters; empty if there is no problem.
    why: str = ""
    #: A command or a setting; empty if there is nothing to do.
    fix: str = ""
    #: The stream, tag or worker concerned, if there are several of its kind.
    about: str = ""


@dataclass(frozen=True)
class Finding(Remark):
    """A remark with the id of its check. Ids are stable."""

    check: str = ""


def ok(what: str, about: str = "") -> Remark:
    return Remark(Level.OK, what, about=about)


def note(what: str, why: str, fix: str = "", about: str = "") -> Remark:
    return Remark(Level.NOTE, what, why, fix, about)


def warning(what: str, why: str, fix: str, about: str = "") -> Remark:
    return Remark(Level.WARNING, what, why, fix, about)


def danger(what: str, why: str, fix: str, about: str = "") -> Remark:
    return Remark(Level.DANGER, what, why, fix, about)


def worst(findings: Iterable[Remark]) -> Level:
    return max((finding.level for finding in findings), key=lambda level: level.rank, default=Level.OK)


def size(count: int) -> str:
    """Format a number of bytes for people."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit in {"B", "KiB"} or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def age(seconds: float) -> str:
    """Format a time span for people."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def some(names: Iterable[str], count_max: int = 5) -> str:
    """Return the first few names, and how many more there are."""
    listed = list(names)
    more = len(listed) - count_max
    return ", ".join(listed[:count_max]) + (f" and {more} more" if more > 0 else "")
