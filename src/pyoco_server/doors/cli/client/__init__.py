"""The `pyoco-client` command: everything the HTTP API offers, from a shell (section 19.2).

The commands are in `group.py`. Only this module is imported before the signal handlers are installed, so a Ctrl-C in
the first 0.1 s ends the command cleanly too.
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
        _handle_signals()
        from pyoco_server.doors.cli.client.group import start  # takes 80 ms: after the handlers

        start()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _handle_signals() -> None:
    """Treat SIGTERM and SIGHUP like Ctrl-C: the terminal is restored and the exit code is 130 (FLOW-425)."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Leave ignored signals ignored: under `nohup`, closing the terminal must not end the command.
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def __getattr__(name: str) -> Any:
    if name not in {"COMMANDS", "cli"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyoco_server.doors.cli.client import group

    return getattr(group, name)
