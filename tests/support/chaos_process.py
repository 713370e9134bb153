"""One of our commands, with a clock that a test can move, and a keeper that looks every half second instead of ten,
and gives a submission no more time than `abandon_after_sec`.

Run as a script: the name of the command's module, the file that says by how many seconds the clock is wrong, then the
command's own options.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

_LOOK_SECONDS = 0.5


def _move_clock(file: Path) -> None:
    """Everything in this process that asks for the time of day; what measures durations is left alone."""

    def difference() -> float:
        return float(file.read_text())

    if hasattr(time.time, "difference"):  # a fork (see warm_processes.py): what was imported by now has this very clock
        time.time.difference = difference
        return
    usual = time.time

    def moved() -> float:
        return usual() + difference()

    time.time = moved


def _look_often() -> None:
    from pyoco_server.loops.loop import Loop

    usual = Loop.__init__

    def quick(self: Loop, *, every_seconds: float, **more: Any) -> None:
        is_priced = ".priced." in type(self).__module__  # those have settings, and one of them reads the whole journal
        usual(self, every_seconds=every_seconds if is_priced else min(every_seconds, _LOOK_SECONDS), **more)

    Loop.__init__ = quick  # type: ignore[method-assign]

    from pyoco_server.loops.rescuer import Rescuer

    # Submissions of the tests take no 40 s.
    Rescuer.__init__.__kwdefaults__ = {"submit_seconds": 0.0}


def main() -> None:
    module, file, *options = sys.argv[1:]
    sys.argv = [f"pyoco-{module}", *options]
    _move_clock(Path(file))
    if module == "keeper":
        _look_often()
    import_module(f"pyoco_server.doors.cli.{module}").main()


if __name__ == "__main__":
    main()
