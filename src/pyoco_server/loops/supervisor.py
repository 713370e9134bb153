"""Keeps child processes running until it is told to stop; then stops them in order."""

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
from pyoco_server.errors import OtherLedger, PyocoError, Unavailable, UsageError
from pyoco_server.logs import get_logger

__all__ = ["Child", "Part", "Supervisor"]

log = get_logger(__name__)

_DEATHS_MAX = 5
_DEATHS_SECONDS = 30.0
_PAUSE_SECONDS = 0.2
_PAUSE_SECONDS_MAX = 5.0
#: A first start that ends sooner than this, with an exit code for "the user can fix it", is not tried again. A busy
#: machine needs more than ten seconds until a worker has found out.
_FIRST_SECONDS = 60.0
_FIXABLE = frozenset({1, 3})


class Outlet(Protocol):
    """The two ends that a child writes to."""

    #: None: the child inherits ours.
    stdout: int | None
    stderr: int

    def close(self) -> None:
        """Called once the child has them."""


class Console(Protocol):
    """Where the output of the children goes."""

    async def outlet(self, name: str) -> Outlet:
        """For the next start of this child."""

    def last_words(self, name: str) -> list[str]:
        """The last lines that the child wrote to stderr."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process to keep running."""

    name: str
    #: Asked anew at each start.
    command: Callable[[], Sequence[str | Path]]
    environment: Callable[[], Mapping[str, str]]
    #: Higher ones are stopped later; equal ones together.
    stops: int
    #: None: as long as it takes.
    stop_seconds: float | None
    #: Returns when it can be used; raises when that takes too long. Without it, a part is ready once it runs.
    until_ready: Callable[[], Awaitable[None]] | None = None
    #: What it gets when we die without a word.
    death: signal.Signals = signal.SIGKILL
    inherit: Sequence[int] = field(default=())
    #: Where it works; None: where we do.
    folder: Path | None = None
    #: A file for stdout and stderr, instead of the console.
    output: Path | None = None
    #: Why it could not be started, if it can tell better than its last words on stderr.
    failure: Callable[[], PyocoError] | None = None
    #: The others cannot start while this one is away; of several, while half of them are.
    is_base: bool = False


class _Base:
    """What the other parts stand on."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._size = sum(part.is_base for part in parts)
        self._there: set[str] = set()
        self._ready = asyncio.Event()
        if not self._size:
            self._ready.set()

    def comes(self, name: str) -> None:
        self._there.add(name)
        if 2 * len(self._there) > self._size:
            self._ready.set()

    def goes(self, name: str) -> None:
        self._there.discard(name)
        if 2 * len(self._there) <= self._size:
            self._ready.clear()

    def release(self) -> None:
        """Nobody waits for it any more."""
        self._ready.set()

    async def wait(self) -> None:
        await self._ready.wait()


class Child:
    """One part's process, through all its lives."""

    def __init__(self, part: Part, console: Console, base: _Base, tell_back: Callable[[str, int], None]) -> None:
        self.part = part
        self._console, self._base, self._tell_back = console, base, tell_back
        #: Unset while somebody wants it away.
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._process: asyncio.subprocess.Process | None = None
        self._started_at = 0.0
        self._deaths: deque[float] = deque(maxlen=_DEATHS_MAX)
        self._is_first = True
        self._stopping = asyncio.Event()

    async def live(self) -> None:
        """Start it, and again whenever it ends. Returns after `stop`. Raises PyocoError when it is hopeless."""
        while not self._stopping.is_set():
            if not self.part.is_base:
                await self._base.wait()
            await self._wanted.wait()
            if self._stopping.is_set():
                return
            process = await self._start()
            if await self._becomes_ready(process):
                self._tell_ready(process.pid)
            status = await process.wait()
            if self.part.is_base:
                self._base.goes(self.part.name)
            if not self._stopping.is_set():
                await self._mourn(process, status)

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
        if self._stopping.is_set():  # told while it was being made
            await end(self._process, part.stop_seconds)
        return self._process

    async def _spawn(self, stdout: int | None, stderr: int) -> asyncio.subprocess.Process:
        part = self.part
        command = part.command()
        log.info("starting a child", child=part.name)
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
        """False when it ended before."""
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
            log.warning("a child did not become ready; it is killed", child=self.part.name, error=error)
            kill(process)
            return False
        finally:
            ready.cancel()
            ended.cancel()

    def _tell_ready(self, pid: int) -> None:
        if self.part.is_base:
            self._base.comes(self.part.name)
        if not self._is_first:
            log.info("a child is back", child=self.part.name, pid=pid)
            self._tell_back(self.part.name, pid)

    async def _mourn(self, process: asyncio.subprocess.Process, status: int) -> None:
        """Say how it ended, and wait before the next start. Raises when there is no use in one."""
        name, now = self.part.name, time.monotonic()
        await end(process, 5.0)  # whatever it left in its process group must not meet its successor
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
        log.warning(f"{name} ended and is started again", child=name, reason=how, pause_seconds=pause)
        try:
            async with asyncio.timeout(pause):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _failure(self, what: str) -> PyocoError:
        """With the id that the child itself gave, if it gave one."""
        if self.part.failure is not None:
            return self.part.failure()
        words = "\n".join(self._console.last_words(self.part.name))
        ids = re.findall(r"^ERR-PYOCO-(\d{4}): ", words, re.MULTILINE)
        kind = {"0003": Unavailable, "0018": UsageError, "0049": OtherLedger}.get(ids[-1] if ids else "", PyocoError)
        return kind(f"{what}; what it said stands above" if words else what)

    def expect_end(self) -> None:
        """From here on it is not started again."""
        self._stopping.set()
        self._base.release()
        self._wanted.set()

    async def stop(self) -> None:
        self.expect_end()
        if self._process is None or self._process.returncode is not None:
            return
        if not await end(self._process, self.part.stop_seconds):
            log.warning("a child did not stop in time and was killed", child=self.part.name)

    async def restart(self) -> None:
        """An orderly end; `live` starts it again. Nothing, while it does not run."""
        process = self._process
        if process is not None and process.returncode is None and not self._stopping.is_set():
            await end(process, self.part.stop_seconds)

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """SIGKILL; it is started again after the block."""
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
        """`tell_back` hears the name and the new process id of each child that had ended and can be used again."""
        base = _Base(parts)
        self._children = [Child(part, console, base, tell_back) for part in parts]
        self._lives: dict[asyncio.Task[None], Child] = {}

    def start(self) -> None:
        """Begin; in the order of the parts."""
        for child in self._children:
            self._lives[asyncio.create_task(child.live(), name=child.part.name)] = child

    async def failed(self) -> None:
        """Waits until one of them is hopeless, and raises why."""
        done, _ = await asyncio.wait(self._lives, return_when=asyncio.FIRST_EXCEPTION)
        for life in done:
            life.result()

    def pids(self) -> dict[str, int]:
        """Of those that run, by their names."""
        return {child.part.name: child.pid for child in self._children if child.pid is not None}

    def away(self, name: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Without this child, killed, for as long as the block takes."""
        return next(child for child in self._children if child.part.name == name).away()

    async def restart_base(self) -> None:
        """Returns when it has ended; it is started again as after any other end."""
        await asyncio.gather(*(child.restart() for child in self._children if child.part.is_base))

    async def stop(self) -> None:
        """Returns when none of them runs any more. May be called twice."""
        for child in self._children:
            child.expect_end()
        for stage in sorted({child.part.stops for child in self._children}):
            group = [child for child in self._children if child.part.stops == stage]
            await asyncio.gather(*(child.stop() for child in group))
        await asyncio.gather(*self._lives, return_exceptions=True)

    def kill(self) -> None:
        """All of them, now. `stop` then returns at once."""
        for child in self._children:
            child.kill()
