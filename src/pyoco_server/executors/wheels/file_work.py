"""Work on files, beside the event loop and to its end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["file_work"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def file_work(work: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
    """Do it in a thread. A thread cannot be stopped, so a cancel waits for its end: nothing of it goes on behind the
    back of whoever comes next, and removes or moves what they are using."""
    working = asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *arguments, **named))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            try:
                await asyncio.wait({working})
            except asyncio.CancelledError:  # once more: it is on its way
                continue
        if not working.cancelled():
            working.exception()  # seen
        raise
