"""The host process: reads calls from a socket and executes packs, one at a time, until it is stopped.

Started by `pool.py` as `python -m pyoco_server.executors.packs.child WORK_FD CONTROL_FD LIFELINE_FD`, with stdout and
stderr discarded: what a pack prints may contain tenant data (PRICED-171). The main thread executes; a second one waits
for a cancel request, and for the worker's exit.
"""

from __future__ import annotations

import contextvars
import decimal
import importlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyoco_server.config.packs import PackConfig
from pyoco_server.executors.host.inside import Channel, bound_memory, end_all, live, shed_memory
from pyoco_server.executors.host.scene import Scene
from pyoco_server.executors.host.wire import CANCEL, FAULT, LAST, MORE, number
from pyoco_server.executors.packs import wire
from pyoco_server.executors.packs.port import Call, Context, Execute, Executed, Faulted, PackError, PackUnavailable

if TYPE_CHECKING:
    from pyoco_server.executors.capture.marks import Marks

_SCORE_UNIT = 10_000


class Child:
    def __init__(self, work: Channel, control: Channel, marks: Marks | None = None) -> None:
        self._work, self._control, self._marks = work, control, marks
        self._lock = threading.Lock()
        self._calls = 0
        self._cancelled = threading.Event()
        #: Number of the last cancelled call: the cancel request may arrive before the call itself.
        self._unwanted = b""

    def serve(self) -> None:
        data = self._work.receive()
        if data is None:
            return
        greeting = wire.Greeting.unpack(data)
        bound_memory(greeting.memory_bytes_max)
        try:
            executors = _load(greeting)
        except BaseException as error:  # noqa: BLE001  (third-party imports may raise anything; the worker reports it)
            self._work.send(FAULT + f"the packs cannot be loaded: {error!r}".encode("utf-8", "replace"))
            return
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        scene = Scene()
        self._work.send(wire.pack_ready(tuple(executors)))
        while (data := self._work.receive()) is not None:
            call, cancelled = wire.unpack_call(data), self._next_call()
            if self._marks is not None:
                self._marks.begin_run(self._calls)
            answer = contextvars.copy_context().run(_executed, executors, call, cancelled)
            body, has_faulted = wire.pack_answer(answer), isinstance(answer, Faulted)
            del answer
            # Before the answer, since the next call arrives as soon as the answer is sent.
            is_fit = scene.restore() and (not has_faulted or shed_memory(greeting.memory_bytes_max))
            if self._marks is not None:
                self._marks.end_run()
            self._work.send(number(self._calls) + (MORE if is_fit else LAST) + body)
            if not is_fit:
                return

    def _next_call(self) -> threading.Event:
        """Count the next call. Returns the event that is set when it is cancelled."""
        with self._lock:
            self._calls += 1
            self._cancelled = threading.Event()
            if self._unwanted == number(self._calls):
                self._cancelled.set()
            return self._cancelled

    def _listen(self) -> None:
        """Serve cancel requests. Ends this process when the worker has exited, and also when this thread fails, for
        example for lack of memory, since nothing else would detect the worker's exit."""
        try:
            while (asked := self._control.receive()) is not None:
                if asked.startswith(CANCEL):
                    with self._lock:
                        self._unwanted = asked.removeprefix(CANCEL)
                        if self._unwanted == number(self._calls):
                            self._cancelled.set()
        finally:
            end_all()


def _load(greeting: wire.Greeting) -> Mapping[str, Execute]:
    module, _, attribute = greeting.loader.partition(":")
    load: Callable[[Mapping[str, str], PackConfig], Mapping[str, Execute]]
    load = getattr(importlib.import_module(module), attribute)
    return load(greeting.packs, PackConfig(**greeting.config))


def _executed(executors: Mapping[str, Execute], call: Call, cancelled: threading.Event) -> Executed | Faulted:
    """Execute a call. Always returns an answer; neither logs nor error details quote what the pack raised."""
    decimal.setcontext(decimal.DefaultContext.copy())  # the copied context would share the one that is there
    context = Context(
        run_id=call.run_id,
        tenant_id=call.tenant_id,
        trace_id=call.trace_id,
        deadline=time.monotonic() + call.timebox_seconds,
        min_reliability_score=call.min_reliability_e4 / _SCORE_UNIT,
        artifacts=call.artifacts,
        reserved_usd_micros=call.reserved_usd_micros,
        files={key: Path(path) for key, path in call.files.items()},
        cancelled=cancelled,
    )
    try:
        return Executed(executors[call.pack_type](call.inputs, context))
    except PackError as error:
        return Faulted(f"{error.code}: {error.detail}", is_unavailable=isinstance(error, PackUnavailable))
    except BaseException as error:  # noqa: BLE001  (boundary to third-party code; its message may quote inputs)
        return Faulted(f"the pack raised {type(error).__name__}", _place(error))


def _place(error: BaseException) -> str | None:
    """Location where an error was raised. Without values: a message or a variable may contain tenant data."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    code = trace.tb_frame.f_code
    return f"{Path(code.co_filename).name}:{trace.tb_lineno} in {code.co_name}"


def main() -> None:
    live(lambda work, control, marks: Child(work, control, marks).serve())


if __name__ == "__main__":
    main()
