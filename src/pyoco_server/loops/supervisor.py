"""Keeps child processes running until it is stopped, then stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pyoco_server.embedded import end, kill, spawn
from pyoco_server.errors import AppNotLoaded, OtherLedger, PyocoError, Unavailable, UsageError
from pyoco_server.logs import get_logger

__all__ = ["Child", "Part", "Supervisor"]

log = get_logger(__name__)

_DEATHS_MAX = 5
_DEATHS_SECONDS = 30.0
_PAUSE_SECONDS = 0.2
_PAUSE_SECONDS_MAX = 5.0
#: A first start that exits sooner than this, with an exit code for "the user can fix it", is not retried. On a busy
#: machine a worker needs more than ten seconds to detect such a problem.
_FIRST_SECONDS = 60.0
_FIXABLE = frozenset({1, 3})
#: Errors that a child may print, and that its failure is reported as.
_KINDS: dict[str, type[PyocoError]] = {
    "0003": Unavailable,
    "0018": UsageError,
    "0049": OtherLedger,
    "0072": AppNotLoaded,
}


class Outlet(Protocol):
    """The two streams that a child writes to."""

    #: None: the child inherits ours.
    stdout: int | None
    stderr: int

    def close(self) -> None:
        """Called once the child has inherited them."""


class Console(Protocol):
    """Receives the output of the children."""

    async def outlet(self, name: str) -> Outlet:
        """Return the outlet for the next start of this child."""

    def last_words(self, name: str) -> list[str]:
        """The last lines that the child wrote to stderr."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process to keep running."""

    name: str
    #: Called at each start.
    command: Callable[[], Sequence[str | Path]]
    environment: Callable[[], Mapping[str, str]]
    #: Parts with higher numbers are stopped later; equal ones together.
    stops: int
    #: Time to stop before it is killed; None: unlimited.
    stop_seconds: float | None
    #: Returns when the part is usable; raises if that takes too long. Without it, a part is ready once it runs.
    until_ready: Callable[[], Awaitable[None]] | None = None
    #: The signal it receives if this process dies unexpectedly.
    death: signal.Signals = signal.SIGKILL
    inherit: Sequence[int] = field(default=())
    #: Working directory; None: ours.
    folder: Path | None = None
    #: A file for stdout and stderr, instead of the console.
    output: Path | None = None
    #: Returns the reason why it could not be started, if that is more specific than its last lines on stderr.
    failure: Callable[[], PyocoError] | None = None
    #: Other parts cannot start while this one is down; if there are several, while at least half of them are.
    is_base: bool = False


class _Base:
    """Tracks the base parts, which the other parts depend on."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._size = sum(part.is_base for part in parts)
        self._running: set[str] = set()
        self._ready = asyncio.Event()
        if not self._size:
            self._ready.set()

    def add(self, name: str) -> None:
        self._running.add(name)
        if 2 * len(self._running) > self._size:
            self._ready.set()

    def remove(self, name: str) -> None:
        self._running.discard(name)
        if 2 * len(self._running) <= self._size:
            self._ready.clear()

    def release(self) -> None:
        """Let all waiters continue: the base is no longer waited for."""
        self._ready.set()

    async def wait(self) -> None:
        await self._ready.wait()


class Child:
    """The process of one part, across restarts."""

    def __init__(self, part: Part, console: Console, base: _Base, tell_back: Callable[[str, int], None]) -> None:
        self.part = part
        self._console, self._base, self._tell_back = console, base, tell_back
        #: Cleared while the part must not run.
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._process: asyncio.subprocess.Process | None = None
        self._started_at = 0.0
        self._deaths: deque[float] = deque(maxlen=_DEATHS_MAX)
        self._is_first = True
        self._stopping = asyncio.Event()

    async def live(self) -> None:
        """Start the process, and restart it whenever it ends. Returns after `stop`. Raises PyocoError if restarting is
        pointless."""
        while not self._stopping.is_set():
            if not self.part.is_base:
                await self._base.wait()
            await self._wanted.wait()
            if self._stopping.is_set():
                return
            process = await self._start()
            if await self._becomes_ready(process):
                self._report_ready(process.pid)
            status = await process.wait()
            if self.part.is_base:
                self._base.remove(self.part.name)
            if not self._stopping.is_set():
                await self._handle_exit(process, status)

    async def _start(self) -> asyncio.subprocess.Process:
        part = self.part
        if part.output is not None:
            part.output.parent.mkdir(parents=True, exist_ok=True)
            with part.output.open("wb") as output:
                self._process = await self._spawn(output.fileno(), output.fileno())
        else:
            outlet = await self._console.outlet(part.name)
            try:
                self._process = await self._spawn(outlet.stdout, outlet.stderr)
            finally:
                outlet.close()
        self._started_at = time.monotonic()
        if self._stopping.is_set():  # stopped while it was being started
            await end(self._process, part.stop_seconds)
        return self._process

    async def _spawn(self, stdout: int | None, stderr: int) -> asyncio.subprocess.Process:
        part = self.part
        command = part.command()
        log.info("starting a child process", child=part.name)
        return await spawn(
            command,
            death=part.death,
            environment=part.environment(),
            stdout=stdout,
            stderr=stderr,
            inherit=part.inherit,
            folder=part.folder,
        )

    async def _becomes_ready(self, process: asyncio.subprocess.Process) -> bool:
        """Returns False if it ended before it was ready."""
        if self.part.until_ready is None:
            return True
        ready = asyncio.ensure_future(self.part.until_ready())
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                return False
            error = ready.exception()
            if error is None:
                return True
            if self._is_first and isinstance(error, PyocoError):
                raise error
            log.warning("child process did not become ready; killing it", child=self.part.name, error=error)
            kill(process)
            return False
        finally:
            ready.cancel()
            ended.cancel()

    def _report_ready(self, pid: int) -> None:
        if self.part.is_base:
            self._base.add(self.part.name)
        if not self._is_first:
            log.info("child process restarted", child=self.part.name, pid=pid)
            self._tell_back(self.part.name, pid)

    async def _handle_exit(self, process: asyncio.subprocess.Process, status: int) -> None:
        """Log how it ended, and wait before the next start. Raises if another start would be pointless."""
        name, now = self.part.name, time.monotonic()
        await end(process, 5.0)  # processes left in its group must not interfere with the next one
        if now - self._started_at > _DEATHS_SECONDS:
            self._deaths.clear()
        self._deaths.append(now)
        how = _how(status)
        if self._is_first and status in _FIXABLE and now - self._started_at < _FIRST_SECONDS:
            raise self._failure(f"{name} did not start")
        if len(self._deaths) == _DEATHS_MAX and now - self._deaths[0] < _DEATHS_SECONDS:
            raise self._failure(f"{name} ended {_DEATHS_MAX} times within {_DEATHS_SECONDS:.0f} s, last: {how}")
        self._is_first = False
        pause = min(_PAUSE_SECONDS * 2 ** (len(self._deaths) - 1), _PAUSE_SECONDS_MAX)
        log.warning(f"{name} exited; restarting", child=name, reason=how, pause_seconds=pause)
        try:
            async with asyncio.timeout(pause):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _failure(self, what: str) -> PyocoError:
        """Return the error with the id that the child itself printed, if any."""
        if self.part.failure is not None:
            return self.part.failure()
        words = "\n".join(self._console.last_words(self.part.name))
        ids = re.findall(r"^ERR-PYOCO-(\d{4}): ", words, re.MULTILINE)
        kind = _KINDS.get(ids[-1] if ids else "", PyocoError)
        return kind(f"{what}; see its output above" if words else what)

    def expect_end(self) -> None:
        """Do not restart it from now on."""
        self._stopping.set()
        self._base.release()
        self._wanted.set()

    async def stop(self) -> None:
        self.expect_end()
        if self._process is None or self._process.returncode is not None:
            return
        if not await end(self._process, self.part.stop_seconds):
            log.warning("child process did not stop in time; killed it", child=self.part.name)

    async def restart(self) -> None:
        """Stop it in an orderly way; `live` restarts it. No effect if it is not running."""
        process = self._process
        if process is not None and process.returncode is None and not self._stopping.is_set():
            await end(process, self.part.stop_seconds)

    @property
    def pid(self) -> int | None:
        """None: it is not running."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Kill it with SIGKILL; it is restarted after the block."""
        self._wanted.clear()
        try:
            if self._process is not None and self._process.returncode is None:
                kill(self._process)
                await self._process.wait()
            yield
        finally:
            self._wanted.set()

    def kill(self) -> None:
        self.expect_end()
        if self._process is not None and self._process.returncode is None:
            kill(self._process)


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {signal.Signals(-status).name}" if -status in set(signal.Signals) else f"signal {-status}"


class Supervisor:
    def __init__(
        self, parts: Sequence[Part], console: Console, tell_back: Callable[[str, int], None] = lambda name, pid: None
    ) -> None:
        """`tell_back` receives the name and the new process id of each child that was restarted and is ready."""
        base = _Base(parts)
        self._children = [Child(part, console, base, tell_back) for part in parts]
        self._lives: dict[asyncio.Task[None], Child] = {}

    def start(self) -> None:
        """Start the children, in the order of the parts."""
        for child in self._children:
            self._lives[asyncio.create_task(child.live(), name=child.part.name)] = child

    async def failed(self) -> None:
        """Wait until one of them cannot be restarted, and raise the reason."""
        done, _ = await asyncio.wait(self._lives, return_when=asyncio.FIRST_EXCEPTION)
        for life in done:
            life.result()

    def pids(self) -> dict[str, int]:
        """Process ids of the running children, by name."""
        return {child.part.name: child.pid for child in self._children if child.pid is not None}

    def away(self, name: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Kill this child and keep it down for the duration of the block."""
        return next(child for child in self._children if child.part.name == name).away()

    async def restart_base(self) -> None:
        """Return when the base parts have ended; they are restarted as after any other exit."""
        await asyncio.gather(*(child.restart() for child in self._children if child.part.is_base))

    async def stop(self) -> None:
        """Return when no child is running any more. Idempotent."""
        for child in self._children:
            child.expect_end()
        for stage in sorted({child.part.stops for child in self._children}):
            group = [child for child in self._children if child.part.stops == stage]
            await asyncio.gather(*(child.stop() for child in group))
        await asyncio.gather(*self._lives, return_exceptions=True)

    def kill(self) -> None:
        """Kill all children immediately. `stop` then returns without delay."""
        for child in self._children:
            child.kill()
