"""Processes of a measurement: bounded in time, gone with it, and their last words kept."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Driver", "Failed", "driver", "last_line", "spawned"]

ROOT = Path(__file__).parent.parent.parent


class Failed(Exception):
    """One peer could not be measured; the others go on."""


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def last_line(log: Path) -> str:
    """What it said last: in a traceback that is the error."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing was said"


@contextlib.contextmanager
def spawned(
    command: Sequence[str], environment: Mapping[str, str], log: Path, lines: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, which is killed at the end, whatever it has started with it. `lines`: what
    stands for its stdin and stdout, instead of nothing and the log."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL if lines is None else lines,
            stdout=output if lines is None else lines,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (it takes no lock)
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@dataclass
class Driver:
    """A peer's program under one command."""

    process: subprocess.Popen[bytes]
    log: Path

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any]:
        """Its next line. Raises Failed when none comes."""
        assert self.process.stdout is not None
        line = b""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise Failed(f"no answer within {seconds:g} s; {last_line(self.log)}")
                read = os.read(self.process.stdout.fileno(), 1 << 20)
                if not read:
                    raise Failed(last_line(self.log))
                line += read
        found = json.loads(line)
        assert isinstance(found, dict)
        return found


@contextlib.contextmanager
def driver(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Driver]:
    with spawned(command, environment, log, lines=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            yield Driver(process, log)
