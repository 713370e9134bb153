"""Formats exceptions of third-party code."""

from __future__ import annotations

import json
from typing import Any

from pyoco_server.core.values.encode import NotEncodable, WriteStopped, encode_value
from pyoco_server.errors import PyocoError

__all__ = ["exception_form", "exception_text"]

#: Larger arguments are left out: the exception can then not be rebuilt.
_ARGS_BYTES_MAX = 4096


def exception_text(error: BaseException) -> str:
    """Return the exception in one line, with the problems that a refusal lists. Never raises."""
    if isinstance(error, PyocoError) and error.problems:
        return "; ".join(f"{'.'.join(map(str, item.loc))}: {item.msg}" for item in error.problems)
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  (a task's exception may not even be printable)
        text = "(an exception that cannot be printed)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _TooLarge(WriteStopped):
    """The arguments are too large for a record."""


def exception_form(error: BaseException) -> dict[str, Any]:
    """Return the class of an exception, and its arguments in the encoding of values if they can be and are small: what
    a client needs to rebuild it. Never raises."""
    kind, pieces, size = type(error), list[bytes](), 0

    def write(piece: bytes) -> None:
        nonlocal size
        size += len(piece)
        if size > _ARGS_BYTES_MAX:
            raise _TooLarge
        pieces.append(piece)

    try:
        form = {"module": str(kind.__module__), "name": kind.__qualname__}
        encode_value(list(error.args), write)
        return form | {"args": json.loads(b"".join(pieces))}
    except (NotEncodable, _TooLarge):
        return form
    except Exception:  # noqa: BLE001  (a class of tasks may do anything when it is asked for its name)
        return {"module": "builtins", "name": "Exception"}
