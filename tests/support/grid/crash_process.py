"""`pyoco-grid`, or a gateway, that dies by kill -9 at a named step of submit, claim, finish and the like (P30).

Started as `python -m support.grid.crash_process` in the place of `python -m pyoco_server.doors.cli.grid`, with the same
arguments; `PYOCO_TEST_DIES_AT` is one of the POINTS of `actions/programs/reach.py`. Nothing else is changed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import uvicorn

from pyoco_server.doors.cli import grid
from pyoco_server.ports.programs import Programs
from pyoco_server.wiring import backend as wiring
from pyoco_server.wiring.programs import open_programs as whole

__all__ = ["VARIABLE", "main"]

VARIABLE = "PYOCO_TEST_DIES_AT"


def main() -> None:
    _die_at(os.environ.pop(VARIABLE))
    run = grid.main if sys.argv[1] in ("leader", "nworker") else uvicorn.main
    run()


def _die_at(point: str) -> None:
    async def reached(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def open_programs(*given: Any, **more: Any) -> AsyncIterator[Programs]:
        async with whole(*given, **more) as programs:
            yield replace(programs, reached=reached)

    wiring.open_programs = open_programs  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
