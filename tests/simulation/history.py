"""Recorded events of a simulation and their text form."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from simulation.loop import SimLoop

__all__ = ["Entry", "format_history", "recorded_logs"]


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


class _Recorder(logging.Handler):
    """Log records as events of the history, by the process that wrote them."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(logging.WARNING)
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "pyoco_fields", {})
        facts = {name: str(value) for name, value in fields.items() if name not in _LONG_FIELDS}
        self._loop.record("log", level=record.levelname, message=record.getMessage(), **facts)


#: Of a log record: texts that say nothing new, or differ between machines.
_LONG_FIELDS = frozenset({"message", "level", "process", "event", "err_id", "msg_id"})


@contextlib.contextmanager
def recorded_logs(loop: SimLoop) -> Iterator[None]:
    """Warnings and errors of the product go to the history instead of the terminal."""
    logger = logging.getLogger("pyoco_server")
    handler, propagated = _Recorder(loop), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
