"""Runs one flow with the pyoco engine, in this process and in the calling thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyoco.core.context import Context
from pyoco.core.engine import Engine
from pyoco.core.log_capture import RunLogCapture
from pyoco.core.models import Flow, RunContext, RunStatus, Task
from pyoco.core.models import TaskState as EngineTaskState
from pyoco.trace.backend import TraceBackend

from pyoco_server.core.job import Job
from pyoco_server.core.outcome import NO_TERMS, Cancelled, Completed, DeadReason, Failed, Outcome, Progress
from pyoco_server.core.states import TaskState
from pyoco_server.errors import CallableRefused, FlowNotResolved, InvalidFlow, ParamsRefused, WorkflowTooLarge
from pyoco_server.executors.flow.exception_text import exception_form, exception_text
from pyoco_server.executors.flow.failures import failure_of
from pyoco_server.executors.flow.graph import graph_of
from pyoco_server.executors.flow.limits import OutputLimits
from pyoco_server.executors.flow.of_app import params_for, pickles
from pyoco_server.executors.flow.outputs import OutputKeeper, ends_of
from pyoco_server.executors.flow.records import plain_records
from pyoco_server.executors.flow.rich_values import RichForms
from pyoco_server.executors.flow.task_tries import Pace, TaskTries, Tell
from pyoco_server.executors.flow.terms import check_tasks, terms_of
from pyoco_server.executors.flow.waits import only_waits

__all__ = ["SILENCE", "EngineRun", "Tasks", "TryingEngine"]


class Tasks(Protocol):
    """Called with the task that a thread executes, in that thread."""

    def begin_task(self, name: str) -> None: ...
    def end_task(self) -> None:
        """Idempotent."""


class _Silence(TraceBackend):  # type: ignore[misc]  # the engine is not typed
    """Suppresses the engine's default trace, which prints to stdout; progress is read from the run context (ENG-14)."""

    def on_flow_start(self, flow_name: str, run_id: str | None = None) -> None: ...
    def on_flow_end(self, flow_name: str) -> None: ...
    def on_node_start(self, node_name: str) -> None: ...
    def on_node_end(self, node_name: str, duration_ms: float) -> None: ...
    def on_node_error(self, node_name: str, error: Exception) -> None: ...


SILENCE = _Silence()


class _TaskTrace(_Silence):
    """Passes on which task begins and ends."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def on_node_start(self, node_name: str) -> None:
        self._tasks.begin_task(node_name)

    def on_node_end(self, node_name: str, duration_ms: float) -> None:
        self._tasks.end_task()

    def on_node_error(self, node_name: str, error: Exception) -> None:
        self._tasks.end_task()


class TryingEngine(Engine):  # type: ignore[misc]  # as above
    """Tries tasks as their policies say. Does not keep what tasks print: nothing reads it, and a task may print more
    than there is memory."""

    def __init__(self, trace: TraceBackend, tries: TaskTries) -> None:
        super().__init__(trace_backend=trace)
        self._tries = tries
        #: What tasks have raised in the end.
        self.raised: dict[str, dict[str, Any]] = {}

    def _execute_task(self, task: Task, ctx: Context, log_capture: RunLogCapture | None = None) -> None:
        try:
            self._tries.execute(task, lambda: super(TryingEngine, self)._execute_task(task, ctx, log_capture))
        except Exception as error:
            self.raised[task.name] = exception_form(error)
            raise

    def run(self, flow: Flow, params: dict[str, Any] | None = None, run_context: RunContext | None = None) -> Context:
        """As the engine does, but `sys.stdout` and `sys.stderr` stay. It replaces them for all threads of the process
        while it runs: runs that overlap then leave their streams behind, and a thread that prints at the moment may
        write to one that is freed, which ends the process."""
        run_context = RunContext() if run_context is None else run_context
        run_context.flow_name, run_context.params = flow.name, params or {}
        for task in flow.tasks:
            run_context.tasks[task.name] = EngineTaskState.PENDING
            run_context.ensure_task_record(task.name)
        self.trace.on_flow_start(flow.name, run_id=run_context.run_id)
        self.active_runs[run_context.run_id] = run_context
        return self._run_flow(flow, Context(params=params or {}, run_context=run_context), run_context, None)


class EngineRun:
    """One attempt. `execute` blocks; `progress` and `ask_cancel` may be called from other threads meanwhile."""

    def __init__(
        self,
        job: Job,
        resolve: Callable[[Job], Flow],
        tasks: Tasks | None = None,
        limits: OutputLimits | None = None,
        task_tries: Mapping[str, Any] | None = None,
        tell: Tell = lambda _: None,
        pace: Pace | None = None,
    ) -> None:
        """`task_tries`: as `Work.task_tries`. `tell` receives what the worker has to know during the run.
        `pace`: the clock of waits between tries of tasks; None: that of this machine."""
        self._job, self._resolve = job, resolve
        self._trace = SILENCE if tasks is None else _TaskTrace(tasks)
        #: The values that the run has returned, once `execute` has returned.
        self.outputs = OutputKeeper(limits or OutputLimits())
        # FLOW-378. The engine treats a context that starts with another status as already ended (ENG-5).
        self._context = RunContext(run_id=job.run_id, status=RunStatus.RUNNING)
        self._graph: Mapping[str, tuple[str, ...]] = {}
        self._terms = NO_TERMS
        self._tell = tell
        self._tries = TaskTries(self._context, task_tries or {}, tell, pace=pace)
        self._flow: Flow | None = None
        self._engine = TryingEngine(self._trace, self._tries)

    def execute(self) -> Outcome:
        """Build the flow and run it. Never raises: any exception of a task is an outcome, including SystemExit
        (FLOW-327)."""
        try:
            flow = self._resolve(self._job)
            check_tasks(flow)
            params = params_for(flow, self._job.params)
        except (ParamsRefused, CallableRefused) as error:
            why = DeadReason.INVALID_JOB if isinstance(error, ParamsRefused) else DeadReason.FLOW_NOT_FOUND
            return Failed(message=f"{error.text.err_id}: {error}", why=why)
        except (InvalidFlow, WorkflowTooLarge) as error:
            return Failed(message=exception_text(error), why=DeadReason.INVALID_JOB)  # FLOW-325
        except FlowNotResolved as error:
            return Failed(message=str(error), why=DeadReason.FLOW_NOT_FOUND)
        except BaseException as error:  # noqa: BLE001  (third-party resolver: any exception is its outcome)
            message = f"building the flow failed: {exception_text(error)}"  # FLOW-323
            return Failed(message=message, cause=failure_of(error))
        self._flow, self._graph, self._terms = flow, graph_of(flow), terms_of(flow)
        self.outputs.forms = RichForms(pickles=pickles(flow))
        if self._terms != NO_TERMS:
            self._tell({"terms": {"retry": self._terms.retry, "timeout": self._terms.timeout}})
        try:
            self._engine.run(flow, params=params, run_context=self._context)
        except BaseException as error:  # noqa: BLE001  (third-party tasks: any exception is their outcome)
            return Failed(message=exception_text(error), progress=self._last_progress(), cause=failure_of(error))
        return self._returned(flow)

    def _returned(self, flow: Flow) -> Outcome:
        """Return the outcome by the engine's status, regardless of cancel requests (FLOW-379 to FLOW-384)."""
        status, progress = self._context.status, self._last_progress()
        if status is RunStatus.COMPLETED:
            self._keep_result(flow, progress)
            return Completed(progress=progress)
        if status in (RunStatus.CANCELLED, RunStatus.CANCELLING):  # ENG-22: CANCELLING: the request came too late
            return Cancelled(progress=progress)
        return Failed(message=f"the engine returned with status {status.value}", progress=progress)

    def _last_progress(self) -> Progress:
        """Return the progress, and keep the outputs of all tasks that have succeeded."""
        progress = self.progress()
        records = progress.task_records
        self.outputs.keep_outputs(
            (name, self._context.task_records[name].output, "output_truncated" not in records[name])
            for name in _succeeded(progress)
        )
        return progress

    def _keep_result(self, flow: Flow, progress: Progress) -> None:
        records = self._context.task_records
        ends = ends_of(flow, progress.tasks, {name: records[name].ended_at or 0.0 for name in progress.task_records})
        if ends is not None:
            self.outputs.keep_result(ends, {name: records[name].output for name in _succeeded(progress)})

    def waits_until(self) -> float | None:
        """Return when the next try of a task is due, if the run waits for nothing else. None: it is executing."""
        waits = dict(self._tries.waits)
        if self._flow is None or self._context.status is not RunStatus.RUNNING:
            return None
        is_waiting = only_waits(self._flow, dict(self._context.tasks), waits.keys())
        return min(waits.values()) if is_waiting else None

    def ask_cancel(self) -> None:
        """Request cancellation as Engine.cancel does, but without its race: an early or intermediate request is not
        lost (ENG-18, ENG-19)."""
        if self._context.status is RunStatus.RUNNING:
            self._context.status = RunStatus.CANCELLING
            self._tries.end_waits()

    def progress(self) -> Progress:
        """Return the state of every task. Threads of the engine modify it concurrently (ENG-11), so a torn read is
        retried."""
        for _ in range(5):
            try:
                tasks = self._tasks()
                records = plain_records(self._records(tasks))
                return Progress(tasks, records, graph=self._graph, terms=self._terms)
            except RuntimeError:  # a collection changed while it was being copied
                time.sleep(0.001)
        return Progress(graph=self._graph, terms=self._terms)

    def _records(self, tasks: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return the task records (FLOW-345). In callbacks and retries a record's state lags behind the task's, which
        is used instead (ENG-14)."""
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
                **self._tries.shown(name),
                **self._exception(name, tasks[name]),
            }
            for name, record in ((name, self._context.task_records[name]) for name in tasks)
        }

    def _exception(self, name: str, state: str) -> dict[str, Any]:
        form = self._engine.raised.get(name) if state == TaskState.FAILED else None
        return {} if form is None else {"exception": form}

    def _tasks(self) -> dict[str, str]:
        """Return the tasks in the order of their start, the others by name: the engine's set has no order."""
        states, records = dict(self._context.tasks), dict(self._context.task_records)
        names = sorted(states.keys() & records.keys(), key=lambda name: (records[name].started_at or math.inf, name))
        return {name: str(states[name].value) for name in names}


def _succeeded(progress: Progress) -> list[str]:
    return [name for name in progress.task_records if progress.tasks[name] == TaskState.SUCCEEDED]
