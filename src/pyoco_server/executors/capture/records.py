"""Sees every record of Python's `logging` that reaches the root logger (LOG-1)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

__all__ = ["see_records", "see_records_of_threads"]


def see_records(handle: Callable[[logging.LogRecord], None], *, lowest: int) -> None:
    """Call `handle` with each record, beside the handlers that the code of a run installs, for as long as this process
    lives.

    Not a handler of the root logger: with one, `logging.basicConfig` in a task would do nothing, and `dictConfig` would
    remove it. `lowest`: the root logger passes records of this level and above.
    """
    call_handlers = logging.Logger.callHandlers

    def call(self: logging.Logger, record: logging.LogRecord) -> None:
        if _reaches_root(self):
            handle(record)
        # Without any handler, `logging` would print the message to stderr as a last resort, a second time.
        if self.hasHandlers():
            call_handlers(self, record)

    logging.Logger.callHandlers = call  # type: ignore[method-assign]
    if logging.root.level > lowest:
        logging.root.setLevel(lowest)


def see_records_of_threads(
    handle: Callable[[logging.LogRecord, bool], AbstractContextManager[object]], lowest: Callable[[], int | None]
) -> Callable[[], None]:
    """Call `handle` with each record of the threads for which `lowest` returns a level. Returns how to undo it.

    The root logger passes records of this level and above in these threads; handlers get those that they would get
    otherwise, within what `handle` returns. It is told whether there is any handler.
    """
    call_handlers, is_enabled = logging.Logger.callHandlers, logging.Logger.isEnabledFor

    def is_enabled_here(self: logging.Logger, level: int) -> bool:
        if is_enabled(self, level):
            return True
        least = lowest()
        return (
            least is not None
            and level >= least
            and level > self.manager.disable
            and not self.disabled
            and _has_level_of_root(self)
        )

    def call(self: logging.Logger, record: logging.LogRecord) -> None:
        if lowest() is None or not _reaches_root(self):
            call_handlers(self, record)
            return
        with handle(record, self.hasHandlers()):
            if is_enabled(self, record.levelno):
                call_handlers(self, record)

    logging.Logger.callHandlers = call  # type: ignore[method-assign]
    logging.Logger.isEnabledFor = is_enabled_here  # type: ignore[method-assign]

    def undo() -> None:
        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]
        logging.Logger.isEnabledFor = is_enabled  # type: ignore[method-assign]

    return undo


def _has_level_of_root(logger: logging.Logger) -> bool:
    each: logging.Logger | None = logger
    while each is not None and each.parent is not None:
        if each.level:
            return False
        each = each.parent
    return True


def _reaches_root(logger: logging.Logger) -> bool:
    each: logging.Logger | None = logger
    while each is not None and each.parent is not None:
        if not each.propagate:
            return False
        each = each.parent
    return True
