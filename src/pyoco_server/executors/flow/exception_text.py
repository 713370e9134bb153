"""Formats exceptions of third-party code."""

from __future__ import annotations

from pyoco_server.errors import PyocoError

__all__ = ["exception_text"]


def exception_text(error: BaseException) -> str:
    """Return the exception in one line, with the problems that a refusal lists. Never raises."""
    if isinstance(error, PyocoError) and error.problems:
        return "; ".join(f"{'.'.join(map(str, item.loc))}: {item.msg}" for item in error.problems)
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  (a task's exception may not even be printable)
        text = "(an exception that cannot be printed)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
