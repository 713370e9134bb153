"""`pyoco-client`: everything that the HTTP API offers, from a shell (section 19.2).

The commands are in `group.py`. This page is all that is imported before signals are heard: a Ctrl-C in the first tenth
of a second ends the command as at any other time.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyoco_server.doors.cli.client.group import COMMANDS, cli

__all__ = ["COMMANDS", "cli", "main"]

_INTERRUPTED = 130


def main() -> None:
    try:
        _hear_signals()
        from pyoco_server.doors.cli.client.group import start  # noqa: PLC0415 - 80 ms, in which somebody may lose patience

        start()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _hear_signals() -> None:
    """As Ctrl-C: the terminal is put in order, and the exit code is 130 (FLOW-425)."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # What is ignored stays so: under `nohup` a closed terminal ends nothing.
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def __getattr__(name: str) -> Any:
    if name not in {"COMMANDS", "cli"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyoco_server.doors.cli.client import group  # noqa: PLC0415 - see above

    return getattr(group, name)
