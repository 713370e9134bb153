"""Recorded events of a simulation and their text form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["Entry", "format_history"]


class Entry(NamedTuple):
    #: Virtual seconds since the start of the simulation.
    time: float
    process: str
    event: str
    facts: Mapping[str, Any]


def format_history(history: Iterable[Entry]) -> str:
    """One line per event: time, process, event, and facts in the order in which they were given."""
    return "".join(f"{_format_entry(entry)}\n" for entry in history)


def _format_entry(entry: Entry) -> str:
    facts = "".join(f" {name}={_format_value(value)}" for name, value in entry.facts.items())
    return f"{entry.time:15.6f} {entry.process:<12} {entry.event}{facts}"


def _format_value(value: object) -> str:
    """Strings without whitespace are not quoted. Sets are sorted, since their order depends on PYTHONHASHSEED."""
    if isinstance(value, str) and value and not any(letter.isspace() for letter in value):
        return value
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(repr, value))) + "}"
    return repr(value)
