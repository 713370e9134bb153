"""One flow, run by the pyoco engine in this process and in the thread that calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyoco.core.engine import Engine
from pyoco.core.models import Flow, RunContext, RunStatus
from pyoco.trace.backend import TraceBackend

from pyoco_server.core.job import Job
from pyoco_server.core.outcome import Cancelled, Completed, DeadReason, Failed, Outcome, Progress
from pyoco_server.errors import CallableRefused, FlowNotResolved, InvalidFlow, WorkflowTooLarge
from pyoco_server.executors.flow.graph import graph_of
from pyoco_server.executors.flow.records import plain_records
from pyoco_server.executors.flow.told import told

__all__ = ["EngineRun"]


class _Silence(TraceBackend):  # type: ignore[misc]  # the engine is not typed
    """The engine's default trace prints to stdout; progress is read from the run context instead (ENG-14)."""

    def on_flow_start(self, flow_name: str, run_id: str | None = None) -> None: ...
    def on_flow_end(self, flow_name: str) -> None: ...
    def on_node_start(self, node_name: str) -> None: ...
    def on_node_end(self, node_name: str, duration_ms: float) -> None: ...
    def on_node_error(self, node_name: str, error: Exception) -> None: ...


_SILENCE = _Silence()


class EngineRun:
    """One attempt. `execute` blocks; `progress` and `ask_cancel` may be called from another thread meanwhile."""

    def __init__(self, job: Job, resolve: Callable[[Job], Flow]) -> None:
        self._job, self._resolve = job, resolve
        # FLOW-378. The engine treats a context made with another status as already over (ENG-5).
        self._context = RunContext(run_id=job.run_id, status=RunStatus.RUNNING)
        self._graph: Mapping[str, tuple[str, ...]] = {}

    def execute(self) -> Outcome:
        """Build the flow and run it. Never raises: what a task throws is an outcome, SystemExit included (FLOW-327)."""
        try:
            flow = self._resolve(self._job)
        except (InvalidFlow, WorkflowTooLarge) as error:
            return Failed(message=told(error), why=DeadReason.INVALID_JOB)  # FLOW-325
        except CallableRefused as error:
            return Failed(message=f"{error.text.err_id}: {error}", why=DeadReason.FLOW_NOT_FOUND)
        except FlowNotResolved as error:
            return Failed(message=str(error), why=DeadReason.FLOW_NOT_FOUND)
        except BaseException as error:  # noqa: BLE001  (somebody else's resolver: any exception is its outcome)
            return Failed(message=f"building the flow failed: {told(error)}")  # FLOW-323
        self._graph = graph_of(flow)
        try:
            # A copy: tasks may change what they are given (ENG-7), and the record shows what was submitted.
            Engine(trace_backend=_SILENCE).run(flow, params=dict(self._job.params), run_context=self._context)
        except BaseException as error:  # noqa: BLE001  (somebody else's tasks: any exception is their outcome)
            return Failed(message=told(error), progress=self.progress())
        return self._returned()

    def _returned(self) -> Outcome:
        """FLOW-379 to FLOW-384: the engine's word, before anyone asks whether a cancel was wanted."""
        status = self._context.status
        if status is RunStatus.COMPLETED:
            return Completed(progress=self.progress())
        if status in (RunStatus.CANCELLED, RunStatus.CANCELLING):  # ENG-22: CANCELLING means it had come too late
            return Cancelled(progress=self.progress())
        return Failed(message=f"the engine returned with status {status.value}", progress=self.progress())

    def ask_cancel(self) -> None:
        """What Engine.cancel does, without its window: a request before or between is not lost (ENG-18, ENG-19)."""
        if self._context.status is RunStatus.RUNNING:
            self._context.status = RunStatus.CANCELLING

    def progress(self) -> Progress:
        """The state of every task. The engine's threads change it meanwhile (ENG-11), so a torn read is repeated."""
        for _ in range(5):
            try:
                tasks = self._tasks()
                return Progress(tasks, plain_records(_records(self._context, tasks)), graph=self._graph)
            except RuntimeError:  # a value grew while we walked it
                time.sleep(0.001)
        return Progress(graph=self._graph)

    def _tasks(self) -> dict[str, str]:
        """Tasks as they were started, the rest by name: the engine keeps them in a set, in no order."""
        states, records = dict(self._context.tasks), dict(self._context.task_records)
        names = sorted(states.keys() & records.keys(), key=lambda name: (records[name].started_at or math.inf, name))
        return {name: str(states[name].value) for name in names}


def _records(context: RunContext, tasks: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """FLOW-345. The record's own state lags the task's in callbacks and retries (ENG-14): the task's counts."""
    return {
        name: {
            "state": tasks[name],
            "started_at": record.started_at,
            "ended_at": record.ended_at,
            "duration_ms": record.duration_ms,
            "error": record.error,
            "traceback": record.traceback,
            "inputs": record.inputs,
            "output": record.output,
            "artifacts": record.artifacts,
        }
        for name, record in ((name, context.task_records[name]) for name in tasks)
    }
