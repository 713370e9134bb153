"""`pyoco-client` as a test calls it: in this process, or as another one on pipes or a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.doors.cli.client import cli
from pyoco_server.doors.cli.shell import outcome
from support.surroundings import variables_without
from support.warm_processes import begun

__all__ = ["COMMAND", "Client", "Ended", "Terminal", "environment", "own_tag", "process", "terminal"]

COMMAND = str(Path(sys.executable).parent / "pyoco-client")


def own_tag() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Client:
    """Calls the command in this process: real arguments, real requests, no second interpreter."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str) -> Ended:
        self.capsys.readouterr()
        code = outcome(cli, "pyoco-client", arguments)
        said = self.capsys.readouterr()
        assert "Traceback" not in said.err
        return Ended(code, said.out, said.err)


def environment(url: str, **more: str) -> dict[str, str]:
    """Nothing of the person who runs the tests: neither variables nor a config file."""
    inherited = variables_without("PYOCO_", "XDG_")
    inherited.pop("NO_COLOR", None)
    own = {"PYOCO_SERVER_URL": url, "XDG_CONFIG_HOME": "/nowhere", "TERM": "xterm-256color", "COLUMNS": "100"}
    return {**inherited, **own, **more}


@contextmanager
def process(url: str, *arguments: str, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """The command as a process whose output is read through pipes; `before` are the words in front of it."""
    with begun(
        [*before, COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(url),
    ) as running:
        try:
            yield running
        finally:
            running.kill()


@dataclass
class Terminal:
    """The command on a terminal of its own, and what the screen was sent."""

    running: subprocess.Popen[bytes]
    fd: int
    sent: str = ""
    _bytes: bytes = field(default=b"", repr=False)

    def until(self, condition: Callable[[str], bool], seconds: float = 120.0) -> str:
        """Returns what was sent once the condition holds for it."""
        deadline = time.monotonic() + seconds
        while not condition(self.sent):
            left = deadline - time.monotonic()
            assert left > 0, self.sent
            assert self._read(left), f"it ended: {self.sent}"
        return self.sent

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def interrupt(self) -> int:
        self.running.send_signal(signal.SIGINT)
        return self.left()

    def left(self) -> int:
        """The exit code, after everything that it still said has been read."""
        while self._read(100.0):
            pass
        return self.running.wait(100)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.fd], [], [], seconds)
        assert ready, self.sent
        try:
            chunk = os.read(self.fd, 65536)
        except OSError:  # Linux: the other end is closed
            chunk = b""
        self._bytes += chunk
        self.sent = self._bytes.decode(errors="replace")
        return bool(chunk)


@contextmanager
def terminal(
    url: str,
    *arguments: str,
    stdout: Any = None,
    variables: Mapping[str, str] | None = None,
    command: Sequence[str] = (COMMAND,),
) -> Iterator[Terminal]:
    """The command on a terminal; `stdout` may go elsewhere."""
    ours, theirs = pty.openpty()
    running = begun(
        [*command, *arguments],
        stdin=theirs,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env=environment(url, **(variables or {})),
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(running, ours)
    finally:
        running.kill()
        running.wait()
        os.close(ours)
