"""The host process: reads jobs from a socket and runs them, one at a time, until it is stopped.

Started by `pool.py` as `python -m pyoco_server.executors.host.child WORK_FD CONTROL_FD LIFELINE_FD`. The main thread
runs the flows, since signals and many libraries expect that; a second thread answers control requests meanwhile.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyoco_server.core.job import trust_job
from pyoco_server.core.outcome import Failed, Outcome
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.errors import AppNotLoaded, UsageError
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.inside import Channel, bound_memory, end_all, live, shed_memory
from pyoco_server.executors.host.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyoco_server.executors.capture.marks import Marks
    from pyoco_server.executors.flow.build import FlowBuilder
    from pyoco_server.executors.flow.engine import EngineRun
    from pyoco_server.executors.flow.outputs import OutputKeeper
    from pyoco_server.executors.flow.served import ServedApp
    from pyoco_server.executors.flow.spool import Spool

#: Everything in a record except params, task records and kept values; a generous estimate.
_REST_OF_RECORD_BYTES = 4096


class Child:
    def __init__(self, work: Channel, control: Channel, marks: Marks | None = None) -> None:
        self._work, self._control, self._marks = work, control, marks
        self._run: EngineRun | None = None
        self._jobs = 0
        self._bytes_max = 0
        #: Held while a message is written to the control socket.
        self._saying = threading.Lock()
        #: The outputs of the last run, which the worker opens when it receives the answer.
        self._spool: Spool | None = None

    def serve(self) -> None:
        greeting = self._work.receive()
        if greeting is None:
            return
        settings = wire.Settings.unpack(greeting)
        self._bytes_max = settings.records_bytes_max
        bound_memory(settings.memory_bytes_max)
        # The slow imports, only after the greeting was received.
        from pyoco_server.executors.flow.engine import EngineRun  # noqa: PLC0415
        from pyoco_server.executors.flow.served import offers_of  # noqa: PLC0415
        from pyoco_server.executors.flow.straight import straight  # noqa: PLC0415

        try:
            app = _app(settings)
            build = _builder(settings, app)
            offered = None if app is None else offers_of(app)
        except UsageError as error:
            fault = wire.APP_FAULT if isinstance(error, AppNotLoaded) else wire.FAULT
            self._work.send(fault + str(error).encode("utf-8", "replace"))
            return
        faults = build.warm()
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        gc.collect()
        gc.freeze()  # exclude permanent objects from later collections, which follow failed runs
        scene = Scene()
        self._work.send(wire.pack_ready(faults, offered))
        while (work := self._work.receive()) is not None:
            self._jobs += 1
            self._forget_outputs()
            data, task_tries = wire.unpack_work(work)
            self._run = EngineRun(
                trust_job(data),
                lambda job: straight(build(job)),
                self._marks,
                settings.outputs,
                task_tries,
                functools.partial(self._tell, self._jobs),
            )
            if self._marks is not None:
                self._marks.begin_run(self._jobs)
            outcome = contextvars.copy_context().run(self._run.execute)
            body, has_failed = self._pack(outcome, len(data), self._run.outputs), isinstance(outcome, Failed)
            self._run = None
            del outcome
            # Before the answer, since the next job arrives as soon as the answer is sent.
            is_fit = scene.restore() and (not has_failed or shed_memory(settings.memory_bytes_max))
            if self._marks is not None:
                self._marks.end_run()
            self._answer((wire.MORE if is_fit else wire.LAST) + body)
            if not is_fit:
                if self._spool is not None:
                    self._work.receive()  # returns once the worker has opened it, and discards this process
                return

    def _pack(self, outcome: Outcome, job_bytes: int, outputs: OutputKeeper) -> bytes:
        """The worker adds the params to the record, so there must be room for them."""
        room = self._bytes_max - job_bytes - _REST_OF_RECORD_BYTES
        body = wire.pack_outcome(outcome, max(room, self._bytes_max // 2), outputs)
        self._spool = outputs.spool if outputs.spool.place is not None else None
        return body

    def _forget_outputs(self) -> None:
        """Delete what the run before has left in its file. The worker opened that before it sent the next job."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _tell(self, job: int, document: Mapping[str, Any]) -> None:
        """Called by threads of the engine."""
        self._say(wire.REMARK + wire.number(job) + wire.pack_remark(document))

    def _say(self, body: bytes) -> None:
        with self._saying:
            self._control.send(body)

    def _answer(self, body: bytes) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # a task may have closed them
                stream.flush()
        self._work.send(wire.number(self._jobs) + body)

    def _listen(self) -> None:
        """Answer the worker's control requests. Ends this process, with everything the tasks have started, when the
        worker has exited, and also when this thread fails, since nothing else would detect the worker's exit."""
        try:
            while (asked := self._control.receive()) is not None:
                # Read in this order: a request about an earlier job must not be applied to the current one.
                run, about_this = self._run, asked[1:] == wire.number(self._jobs)
                run = run if about_this else None
                if asked.startswith((wire.PROGRESS, wire.GRAPH)):
                    self._say(b"" if run is None else self._progress(run, asked))
                elif asked.startswith(wire.CANCEL) and run is not None:
                    run.ask_cancel()
        finally:
            end_all()

    def _progress(self, run: EngineRun, asked: bytes) -> bytes:
        """Return the packed progress, or nothing if that fails: a task may have used up all memory, and this thread
        must go on serving requests."""
        try:
            progress = run.progress()
            if asked.startswith(wire.PROGRESS):
                progress = replace(progress, graph={})
            return wire.pack_progress(progress, self._bytes_max)
        except Exception:  # noqa: BLE001  (whatever the values of tasks do: it is not the end of this thread)
            return b""


def _app(settings: wire.Settings) -> ServedApp | None:
    """Make the wheels importable, and load the app. Raises UsageError."""
    from pyoco_server.executors.flow.paths import place_wheels  # noqa: PLC0415
    from pyoco_server.executors.flow.served import load_app  # noqa: PLC0415

    # After the engine and our own modules, so that no wheel can replace any of those; before the app or the resolver,
    # which may live in one.
    place_wheels(settings.paths)
    return load_app(settings.app) if settings.app else None


def _builder(settings: wire.Settings, app: ServedApp | None) -> FlowBuilder:
    from pyoco_server.executors.flow.build import FlowBuilder, load_resolver  # noqa: PLC0415
    from pyoco_server.executors.flow.reader import YamlFlowFiles  # noqa: PLC0415

    home = settings.app or settings.resolver
    resolver = app.resolve if app is not None else load_resolver(home) if home else None
    environment = Environment(settings.paths, settings.modules)
    own = [home.partition(":")[0]] if home else []
    files = YamlFlowFiles(settings.workflow_bytes_max)
    return FlowBuilder(resolver, files, settings.callable_allow, own=own, environment=environment)


def main() -> None:
    live(lambda work, control, marks: Child(work, control, marks).serve())


if __name__ == "__main__":
    main()
