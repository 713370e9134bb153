"""A flow of an app: called here, or submitted to the server."""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from pyoco.core.models import Flow

from pyoco_server.app.signature import FlowSignature
from pyoco_server.app.values import params_document
from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.outcome import Terms
from pyoco_server.executors.flow.building import build_graph, building
from pyoco_server.executors.flow.here import run_here
from pyoco_server.executors.flow.of_app import OfApp, with_app
from pyoco_server.executors.flow.terms import say_of_flow

if TYPE_CHECKING:
    from pyoco_server.app.aio_handles import AsyncRunHandle
    from pyoco_server.app.app import App
    from pyoco_server.app.handles import RunHandle
    from pyoco_server.app.run_set import RunSet

__all__ = ["AppFlow", "FlowTerms", "Options"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FlowTerms:
    """What a flow says about itself, checked."""

    name: str
    tag: str | None = None
    tags: tuple[str, ...] = ()
    schedule: Mapping[str, Any] | None = None
    retry: Mapping[str, Any] | None = None
    timeout: float | None = None
    tool: bool = False


#: Of an option that was not given: `retry=None` means no retry.
_NOT_GIVEN: Any = object()


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a flow is submitted."""

    tag: str | None = None
    tags: tuple[str, ...] | None = None
    idempotency_key: str | None = None
    #: `delay`, `not_before`, `retry`, `timeout` and `notify`, as the clients take them.
    run: Mapping[str, Any]


class AppFlow(Generic[P, T]):
    """A function that builds a flow. `flow(...)` runs it in this process, `flow.submit(...)` on a worker."""

    def __init__(self, app: App, function: Callable[P, T], terms: FlowTerms) -> None:
        self._app, self._function, self.terms = app, function, terms
        self.signature = FlowSignature(terms.name, function)
        tags = terms.tags or None
        self._options = Options(tag=terms.tag or app.tag, tags=tags, run={})
        self._graph: Flow | None = None
        self._lock = threading.Lock()
        functools.update_wrapper(self, function, updated=())

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def app(self) -> App:
        return self._app

    def __repr__(self) -> str:
        return f"<flow {self.name} of app {self._app.name}>"

    def graph(self) -> Flow:
        """Return the flow as the engine runs it, built once. Raises ValueError and TypeError for a graph that cannot
        be, and whatever the function raises."""
        with self._lock:
            if self._graph is None:
                flow = build_graph(self.name, self._function)
                flow = say_of_flow(flow, Terms(self.terms.retry, self.terms.timeout))
                self._graph = with_app(flow, OfApp(self.signature.read, self._app.pickle))
            return self._graph

    def offered(self) -> OfferedFlow:
        terms = self.terms
        return OfferedFlow(
            name=self.name,
            app=self._app.name,
            doc=inspect.getdoc(self._function) or "",
            tags=tuple(dict.fromkeys([*([self._options.tag] if self._options.tag else []), *terms.tags])),
            params=self.signature.schema(),
            returns=self.signature.schema_of_value(),
            schedule=terms.schedule,
            retry=terms.retry,
            timeout=terms.timeout,
            tool=terms.tool,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the flow in this process and return its value. Raises what its task raises."""
        if building() is not None:
            raise TypeError(f"flow {self.name!r} cannot be a part of another flow: use its tasks")
        params = self.signature.with_defaults(self.signature.bind(args, kwargs))
        return cast(T, run_here(self.graph(), params))

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[T]:
        """Submit a run. It is recorded and queued when this returns. Raises PyocoError."""
        return self._app.submitter.submit(self, self._document(args, kwargs))

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> AsyncRunHandle[T]:
        """Submit a run, for asyncio."""
        return await self._app.submitter.asubmit(self, self._document(args, kwargs))

    def map(self, items: Iterable[Mapping[str, Any]]) -> RunSet[T]:
        """Submit one run for each item, in requests of up to 1,000. All items are checked before the first is sent."""
        return self._app.submitter.map(self, [self._document((), item) for item in items])

    def options(  # noqa: PLR0913  (APP-5)
        self,
        *,
        tag: str | None = _NOT_GIVEN,
        tags: Sequence[str] | None = _NOT_GIVEN,
        delay: float | str | None = None,
        not_before: float | str | None = None,
        retry: str | Mapping[str, Any] | None = _NOT_GIVEN,
        timeout: float | str | None = None,
        idempotency_key: str | None = None,
        notify: Any = None,
    ) -> AppFlow[P, T]:
        """Return the same flow, to be submitted with these options. `retry=None`: no retry, whatever the flow says."""
        if isinstance(tags, str):
            raise TypeError(f"tags is a list of words, not one word: [{tags!r}]")
        run = {"delay": delay, "not_before": not_before, "timeout": timeout, "notify": notify}
        given = {name: value for name, value in run.items() if value is not None}
        if retry is not _NOT_GIVEN:
            given["retry"] = retry
        old = self._options
        changed = copy.copy(self)
        changed._options = replace(
            old,
            tag=old.tag if tag is _NOT_GIVEN else tag,
            tags=old.tags if tags is _NOT_GIVEN or tags is None else tuple(tags),
            idempotency_key=idempotency_key or old.idempotency_key,
            run={**old.run, **given},
        )
        return changed

    @property
    def chosen(self) -> Options:
        """The options that this flow is submitted with."""
        return self._options

    def _document(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return params_document(self.signature.bind(args, kwargs))
