"""`Celery`: an App in the shape of Celery's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from pyoco.core.models import Flow

from pyoco_server.app.app import App
from pyoco_server.app.flows import AppFlow
from pyoco_server.compat.celery.beat import beat_flows
from pyoco_server.compat.celery.canvas import KINDS
from pyoco_server.compat.celery.conf import Conf
from pyoco_server.compat.celery.graph import flow_of
from pyoco_server.compat.celery.refusals import APP, refusal, refuse_all
from pyoco_server.compat.celery.sending import Sending
from pyoco_server.compat.celery.tasks import Task, TaskOptions
from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.executors.flow.of_app import OfApp, with_app

if TYPE_CHECKING:
    from pyoco_server.compat.celery import results

__all__ = ["Celery", "current_app"]

_made: list[Celery] = []


def current_app() -> Celery:
    """Return the app that was made last. Raises LookupError."""
    if not _made:
        raise LookupError("there is no Celery app yet: import the module that makes it, or give app=")
    return _made[-1]


class Celery:
    """Tasks, each of which is a flow. `pyoco-worker MODULE:APP` serves it.

    The server and the key are found as `pyoco-client` finds them: `PYOCO_SERVER_URL`, the profile, the server of this
    machine. `app` is the App below it.
    """

    def __init__(self, main: str | None = None, **options: Any) -> None:
        """Raises NotOffered, and ValueError for a bad name."""
        refuse_all(options, APP, "Celery")
        self.main = main or "celery"
        self.app = App(re.sub(r"[^A-Za-z0-9_-]+", "-", self.main).strip("-_"))
        self.conf = Conf()
        self.tasks: dict[str, Task] = {}
        self._canvases = {kind: self._canvas_flow(kind) for kind in KINDS}
        self._scheduled: dict[str, AppFlow[..., Any]] = {}
        _made[:] = [self]

    def __repr__(self) -> str:
        return f"<Celery {self.main}: {', '.join(sorted(self.tasks)) or 'no tasks'}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refusal(name, APP, "Celery")

    @property
    def name(self) -> str:
        return self.app.name

    @overload
    def task(self, function: Callable[..., Any], /) -> Task: ...

    @overload
    def task(self, function: None = None, /, **options: Any) -> Callable[[Callable[..., Any]], Task]: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a task of a function: `@app.task`, or `@app.task(bind=True, max_retries=5)`."""
        read = TaskOptions.read(options)

        def made(function: Callable[..., Any]) -> Task:
            module = self.main if function.__module__ == "__main__" else function.__module__
            name = read.name or f"{module}.{function.__name__}"
            task = self.tasks[name] = Task(self, function, read, name)
            return task

        return made if function is None else made(function)

    def AsyncResult(self, id: str) -> results.AsyncResult:  # noqa: A002, N802  (Celery's names)
        from pyoco_server.compat.celery.results import AsyncResult  # noqa: PLC0415 - not for hosts

        return AsyncResult(id, app=self)

    def canvas(self, kind: str) -> AppFlow[..., Any]:
        """Return the flow of all chains, groups or chords."""
        return self._canvases[kind]

    def send(
        self, flow: AppFlow[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], sending: Sending
    ) -> results.AsyncResult:
        """Submit a run. Raises PyocoError."""
        from pyoco_server.compat.celery.results import AsyncResult  # noqa: PLC0415 - not for hosts

        options = sending.options(self.conf.timezone, self.conf.task_default_queue)
        handle = flow.options(**options).submit(*args, **kwargs)
        return AsyncResult(sending.task_id or handle.id, app=self, handle=handle)

    def resolve(self, flow_name: str) -> Flow:
        """Return a flow for a host. Raises KeyError."""
        self._schedule()
        flow = self.app.resolve(flow_name)
        if any(canvas.name == flow_name for canvas in self._canvases.values()):
            return with_app(flow, OfApp(dict, graph=partial(self._graph, flow_name)))
        return flow

    def offered(self) -> tuple[OfferedFlow, ...]:
        """Return what a worker announces, by name."""
        self._schedule()
        return self.app.offered()

    def _schedule(self) -> None:
        """Make the flows of `beat_schedule`, which programs set at any time while they are imported."""
        new = {name: entry for name, entry in self.conf.beat_schedule.items() if name not in self._scheduled}
        self._scheduled.update(beat_flows(self, new))

    def _canvas_flow(self, kind: str) -> AppFlow[..., Any]:
        from pyoco_server.executors.flow.own_tasks import task  # noqa: PLC0415 - only here

        @task(name=kind)
        def steps() -> None: ...

        @self.app.flow(name=f"{self.main}.{kind}")
        def flow(canvas: dict[str, Any]) -> Any:
            return steps

        flow.__doc__ = f"A {kind} of tasks; the params say which."
        return flow

    def _graph(self, flow_name: str, params: Mapping[str, Any]) -> Flow:
        return flow_of(flow_name, self.tasks, params.get("canvas"))
