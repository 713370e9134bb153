"""Shows and stores the output of the processes that `pyoco-server up` runs.

On a terminal: warnings and errors as short text, and all output as JSON lines in `<data-dir>/logs/`. Otherwise, and
with `PYOCO_LOG_FORMAT`, the children write directly to our stdout: nothing is in between them and a log collector,
and a slow reader cannot block this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import logging.handlers
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pyoco_server.config import LogSettings
from pyoco_server.logs import configure_logging
from pyoco_server.logs.short import clock_of, has_colour, short_text, with_colour

__all__ = ["Console", "Outlet"]

_FILE_BYTES_MAX = 10 * 1024 * 1024
_FILES_MAX = 3
_LINE_BYTES_MAX = 256 * 1024
_LAST_WORDS = 20
_REPEAT_SECONDS = 30.0
_SHOWN_MAX = 1000

#: The fields shown to a user besides the message; the log files have all of them.
_SHOWN_FIELDS = ("run_id", "reason", "exc_message", "err_id", "repeats", "seconds")


class _Lines(asyncio.Protocol):
    """Splits bytes into lines. A line that never ends is cut, so that memory stays bounded."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_BYTES_MAX:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._take(line.decode(errors="replace").rstrip("\r"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._take(self._rest.decode(errors="replace"))


class Outlet:
    """The two file descriptors that a child writes to. Close it after the child has inherited them."""

    def __init__(self, stdout: int | None, stderr: int) -> None:
        #: None: the child inherits our stdout.
        self.stdout, self.stderr = stdout, stderr

    def close(self) -> None:
        for fd in (self.stdout, self.stderr):
            if fd is not None:
                os.close(fd)


class Console:
    def __init__(self, logs: Path | None) -> None:
        """Write the children's output to `logs` and keep the terminal quiet. None: the children write to our stdout."""
        self._logs = logs
        self._files: dict[str, _File] = {}
        self._last_words: dict[str, deque[str]] = {}
        self._transports: set[asyncio.BaseTransport] = set()
        self._shown: dict[str, float] = {}

    async def outlet(self, name: str) -> Outlet:
        """Open the pipes for the next start of this child. Its stderr is always read: it contains the reason for a
        failure."""
        self._last_words[name] = deque(maxlen=_LAST_WORDS)
        stderr = await self._listen(lambda line: self._on_stderr(name, line))
        stdout = None if self._logs is None else await self._listen(lambda line: self.on_stdout(name, line))
        return Outlet(stdout, stderr)

    def last_words(self, name: str) -> list[str]:
        return list(self._last_words.get(name, ()))

    def say(self, text: str) -> None:
        """Print a message for the user. On stdout, unless JSON lines are expected there."""
        _echo(text, err=self._logs is None)

    def close(self) -> None:
        for transport in self._transports:
            transport.close()
        for file in self._files.values():
            file.close()

    async def _listen(self, take: Callable[[str], None]) -> int:
        read, write = os.pipe()
        # Our own pipe instead of asyncio's, which reports a process as exited only after its grandchildren have closed
        # their end, too.
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: _Lines(take), os.fdopen(read, "rb", buffering=0)
        )
        self._transports = {each for each in self._transports if not each.is_closing()} | {transport}
        return write

    def _on_stderr(self, name: str, line: str) -> None:
        self._last_words[name].append(line)
        _echo(f"{name}: {line}" if self._logs is not None else line, err=True)
        if self._logs is not None:
            self._write(name, json.dumps({"service": name, "stderr": line}, ensure_ascii=False))

    def on_stdout(self, name: str, line: str) -> None:
        if not line:
            return
        record = _parsed(line)
        if record is None:  # a print statement
            _echo(f"{name}: {line}", err=False)
            record = {"service": name, "stdout": line}
            line = json.dumps(record, ensure_ascii=False)
        elif logging.getLevelNamesMapping().get(str(record.get("level")), 0) >= logging.WARNING:
            self._show(name, record)
        self._write(name, line)

    def _show(self, name: str, record: dict[str, Any]) -> None:
        """Print a record, but the same text only once in 30 s: during an outage every process repeats itself."""
        text, now = _short(name, record), time.monotonic()
        shown_at = self._shown.get(text, -_REPEAT_SECONDS)
        if now - shown_at >= _REPEAT_SECONDS:
            if len(self._shown) > _SHOWN_MAX:
                self._shown.clear()
            self._shown[text] = now
            _echo(_coloured(f"{clock_of(record)} {text}", record), err=True)

    def _write(self, name: str, line: str) -> None:
        assert self._logs is not None
        if name not in self._files:
            self._files[name] = _File(self._logs / f"{name}.jsonl")
        self._files[name].emit(logging.makeLogRecord({"msg": line}))

    def take_own_words(self, service: str, settings: LogSettings) -> None:
        """Configure logging in this process, and route its log lines like those of the children."""
        stream = sys.stdout if self._logs is None else _OwnWords(self, service.rpartition(":")[2])
        with contextlib.redirect_stdout(stream):
            configure_logging(service, settings)


class _OwnWords(io.StringIO):
    """A stream for our own log lines, which treats them like those of the children."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__()
        self._console, self._name = console, name

    def write(self, text: str) -> int:
        for line in text.splitlines():
            self._console.on_stdout(self._name, line)
        return len(text)


class _File(logging.handlers.RotatingFileHandler):
    """At most four files of 10 MB. Write errors such as a full disk are ignored: warnings still reach the terminal."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, maxBytes=_FILE_BYTES_MAX, backupCount=_FILES_MAX, encoding="utf-8", errors="replace")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - overrides a method of logging
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def _echo(text: str, *, err: bool) -> None:
    with contextlib.suppress(OSError):  # the terminal was closed: SIGHUP follows, and an orderly stop
        click.echo(text, err=err)


def _parsed(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "level" in record else None


def _short(name: str, record: dict[str, Any]) -> str:
    """Format a record: `warning worker-1: NATS connection lost (reason: …)`"""
    return short_text(name, {field: record.get(field) for field in ("level", "message", *_SHOWN_FIELDS)})


def _coloured(line: str, record: dict[str, Any]) -> str:
    return with_colour(line, record["level"]) if has_colour(sys.stderr) else line
