"""The host's side: a process that reads jobs from a socket and runs them, one at a time, until it is told to go.

Started by `pool.py` as `python -m pyoco_server.executors.host.child WORK_FD CONTROL_FD`. The main thread runs the
flows, since signals and much of the world expect that; a second thread answers questions meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyoco_server.core.job import trust_job
from pyoco_server.core.outcome import Failed, Outcome
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.errors import UsageError
from pyoco_server.executors.host import wire

if TYPE_CHECKING:
    from pyoco_server.executors.flow.build import FlowBuilder
    from pyoco_server.executors.flow.engine import EngineRun

_CHUNK = 1 << 18


class _Channel:
    """A blocking socket that carries frames."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)  # what a task starts must not keep the line open after our end
        self._frames = wire.Frames()
        self._ready: list[bytes] = []

    def receive(self) -> bytes | None:
        """The next body; None when the worker is gone."""
        while not self._ready:
            data = self._socket.recv(_CHUNK)
            if not data:
                return None
            self._ready = self._frames.feed(data)
        return self._ready.pop(0)

    def send(self, body: bytes) -> None:
        self._socket.sendall(wire.frame(body))


class Child:
    def __init__(self, work: _Channel, control: _Channel) -> None:
        self._work, self._control = work, control
        self._run: EngineRun | None = None
        self._jobs = 0
        self._bytes_max = 0

    def serve(self) -> None:
        greeting = self._work.receive()
        if greeting is None:
            return
        settings = wire.Settings.unpack(greeting)
        self._bytes_max = settings.records_bytes_max
        _bound_memory(settings.memory_bytes_max)
        from pyoco_server.executors.flow.engine import EngineRun  # noqa: PLC0415  (the slow import: after the greeting)

        try:
            build = _builder(settings)
        except UsageError as error:
            self._work.send(wire.FAULT + str(error).encode("utf-8", "replace"))
            return
        faults = build.warm()
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        self._work.send(wire.pack_ready(faults))
        while (data := self._work.receive()) is not None:
            self._jobs += 1
            self._run = EngineRun(trust_job(data), build)
            outcome = self._run.execute()
            self._run = None
            self._answer(outcome)
            if isinstance(outcome, Failed):
                del outcome
                if not _shed_memory(settings.memory_bytes_max):
                    return

    def _answer(self, outcome: Outcome) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # a task may have closed them
                stream.flush()
        self._work.send(wire.number(self._jobs) + wire.pack_outcome(outcome, self._bytes_max))

    def _listen(self) -> None:
        """Answer the worker's questions. When it is gone, go too, with everything the tasks have started."""
        while (asked := self._receive_question()) is not None:
            # Read in this order: a question about an earlier job must not meet the one that runs now.
            run, about_this = self._run, asked[1:] == wire.number(self._jobs)
            if asked.startswith((wire.PROGRESS, wire.GRAPH)):
                progress = run.progress() if run is not None and about_this else None
                if progress is not None and asked.startswith(wire.PROGRESS):
                    progress = replace(progress, graph={})
                self._control.send(wire.pack_progress(progress, self._bytes_max) if progress is not None else b"")
            elif asked.startswith(wire.CANCEL) and run is not None and about_this:
                run.ask_cancel()
        _end_all()

    def _receive_question(self) -> bytes | None:
        try:
            return self._control.receive()
        except OSError:
            return None


def _builder(settings: wire.Settings) -> FlowBuilder:
    from pyoco_server.executors.flow.build import FlowBuilder, load_resolver  # noqa: PLC0415
    from pyoco_server.executors.flow.paths import place_wheels  # noqa: PLC0415
    from pyoco_server.executors.flow.reader import YamlFlowFiles  # noqa: PLC0415

    # After the engine and ourselves, so that no wheel can stand in for a part of those; before the resolver, which may
    # live in one.
    place_wheels(settings.paths)
    resolver = load_resolver(settings.resolver) if settings.resolver else None
    environment = Environment(settings.paths, settings.modules)
    own = [settings.resolver.partition(":")[0]] if settings.resolver else []
    files = YamlFlowFiles(settings.workflow_bytes_max)
    return FlowBuilder(resolver, files, settings.callable_allow, own=own, environment=environment)


def _bound_memory(bytes_max: int) -> None:
    """A task that eats memory gets a MemoryError; should the machine run dry all the same, we go before the worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")
    if bytes_max:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = bytes_max if hard == resource.RLIM_INFINITY else min(bytes_max, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _shed_memory(bytes_max: int) -> bool:
    """What a failed task held hangs on its traceback until the collector comes by. False: it still holds too much, and
    the next run deserves a fresh process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return not bytes_max or pages * resource.getpagesize() < bytes_max // 2


def _stay(*_: object) -> None:
    """Not for us: the worker was told too, and lets us finish."""


def main() -> None:
    # The worker decides when a host goes: a Ctrl-C on the terminal, or a service manager that tells every process to
    # stop, must not cut its runs short. A handler and not SIG_IGN, which whatever a task starts would inherit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stay)
    work, control = (_Channel(int(argument)) for argument in sys.argv[1:3])
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker is gone; so are we
            Child(work, control).serve()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        _end_all()  # also when a thread of a task would keep a broken process alive


def _end_all() -> None:
    """This process and everything its tasks have started. Whichever thread first sees that the worker is gone."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
