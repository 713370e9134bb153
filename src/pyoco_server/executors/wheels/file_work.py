"""Runs file operations in a thread, always to completion."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["file_work"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def file_work(work: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
    """Run it in a thread. A thread cannot be stopped, so a cancellation waits for it to finish: it must not keep
    working in the background on files that the next operation uses, removes or moves."""
    working = asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *arguments, **named))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            try:
                await asyncio.wait({working})
            except asyncio.CancelledError:  # cancelled again: it is finishing already
                continue
        if not working.cancelled():
            working.exception()  # mark the exception as retrieved
        raise
