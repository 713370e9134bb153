"""Sees every record of Python's `logging` that reaches the root logger (LOG-1)."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["see_records"]


def see_records(handle: Callable[[logging.LogRecord], None], *, lowest: int | None) -> Callable[[], None]:
    """Call `handle` with each record, beside the handlers that the code of a run installs. Returns how to undo it.

    Not a handler of the root logger: with one, `logging.basicConfig` in a task would do nothing, and `dictConfig` would
    remove it. `lowest`: the root logger passes records of this level and above; None leaves its level unchanged.
    """
    call_handlers = logging.Logger.callHandlers

    def call(self: logging.Logger, record: logging.LogRecord) -> None:
        if _reaches_root(self):
            handle(record)
        # Without any handler, `logging` would print the message to stderr as a last resort, a second time.
        if lowest is None or self.hasHandlers():
            call_handlers(self, record)

    logging.Logger.callHandlers = call  # type: ignore[method-assign]
    if lowest is not None and logging.root.level > lowest:
        logging.root.setLevel(lowest)

    def undo() -> None:
        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]

    return undo


def _reaches_root(logger: logging.Logger) -> bool:
    each: logging.Logger | None = logger
    while each is not None and each.parent is not None:
        if not each.propagate:
            return False
        each = each.parent
    return True
