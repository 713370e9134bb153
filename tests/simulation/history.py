"""What happened in a simulation, and its rendering as text."""

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
    """One line per event: time in microseconds resolution, process, event, facts in the order they were given."""
    return "".join(f"{_format_entry(entry)}\n" for entry in history)


def _format_entry(entry: Entry) -> str:
    facts = "".join(f" {name}={_format_value(value)}" for name, value in entry.facts.items())
    return f"{entry.time:15.6f} {entry.process:<12} {entry.event}{facts}"


def _format_value(value: object) -> str:
    """Strings without blanks stay bare. Sets are sorted: their order depends on the hash seed of the interpreter."""
    if isinstance(value, str) and value and not any(letter.isspace() for letter in value):
        return value
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(repr, value))) + "}"
    return repr(value)
