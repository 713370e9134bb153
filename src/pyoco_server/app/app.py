"""`App`: a set of flows with a name, served by workers and used by programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from pyoco.core.models import Flow

from pyoco_server.app.clients import Clients
from pyoco_server.app.flows import AppFlow, FlowTerms
from pyoco_server.core.names import is_tag
from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.retries.policy import to_document
from pyoco_server.core.retries.reading import read_run_timeout
from pyoco_server.core.schedules.ids import NAME_RULE, is_schedule_name
from pyoco_server.core.unknown import nearest_of
from pyoco_server.errors import InvalidSchedule
from pyoco_server.executors.flow.own_tasks import policy_of

if TYPE_CHECKING:
    from pyoco_server.app.handles import RunHandle
    from pyoco_server.app.submitting import Submitter
    from pyoco_server.testing.block import AppTesting

__all__ = ["App"]

P = ParamSpec("P")
T = TypeVar("T")

_OPTIONS = ("name", "tag", "tags", "schedule", "timezone", "retry", "timeout", "tool")
#: Options of later versions: known, and not offered yet.
_LATER = frozenset({"concurrency"})


class App:
    """Flows with their signatures.

    >>> app = App("reports")
    >>> @app.flow
    ... def measure(url: str) -> int:
    ...     return fetch >> count  # doctest: +SKIP

    `pyoco-worker my_module:app` serves it. `server` and `api_key` are found as `pyoco-client` finds them, unless they
    are given; nothing is connected before the first use. `tag` is where its runs are submitted to, unless a flow names
    another one. `pickle=True` allows values that nothing else can encode to travel pickled between its flows and its
    own handles.
    """

    def __init__(
        self,
        name: str,
        *,
        server: str | None = None,
        api_key: str | None = None,
        tag: str | None = None,
        pickle: bool = False,
    ) -> None:
        """Raises ValueError for a bad name or tag."""
        if not isinstance(name, str) or not is_schedule_name(name):
            raise ValueError(f"the name of an app {NAME_RULE}, and is not `preview`; this is {name!r}")
        _check_tag(tag)
        self.name, self.tag, self.pickle = name, tag, pickle
        self.flows: dict[str, AppFlow[..., Any]] = {}
        self._clients = Clients(server, api_key)

    def __repr__(self) -> str:
        return f"<App {self.name}: {', '.join(sorted(self.flows)) or 'no flows'}>"

    @overload
    def flow(self, function: Callable[P, T], /) -> AppFlow[P, T]: ...

    @overload
    def flow(
        self,
        /,
        *,
        name: str | None = None,
        tag: str | None = None,
        tags: Sequence[str] = (),
        schedule: str | Mapping[str, Any] | None = None,
        timezone: str | None = None,
        retry: str | Mapping[str, Any] | None = None,
        timeout: float | str | None = None,
        tool: bool = False,
    ) -> Callable[[Callable[P, T]], AppFlow[P, T]]: ...

    def flow(  # noqa: PLR0913  (APP-4)
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        tag: str | None = None,
        tags: Sequence[str] = (),
        schedule: str | Mapping[str, Any] | None = None,
        timezone: str | None = None,
        retry: str | Mapping[str, Any] | None = None,
        timeout: float | str | None = None,
        tool: bool = False,
        **unknown: Any,
    ) -> Any:
        """Make a flow of a function that returns a task, tasks joined by `>>`, `ends(a, b)`, a list of ends, or a Flow.

        Its parameters are the params of the flow, and the tasks receive them by name; its return annotation is the type
        of the flow's value. `schedule` is a cron expression or the `when` of a schedule, in `timezone`; `retry` and
        `timeout` are those of its runs; `tool=True` offers it to MCP clients. Raises TypeError for an unknown option,
        ValueError for a bad one and for a second flow of the same name.
        """
        _refuse(unknown)
        _check_tag(tag)
        if isinstance(tags, str):
            raise TypeError(f"tags is a list of words, not one word: [{tags!r}]")
        if timezone is not None and schedule is None:
            raise ValueError("a flow has a timezone for its schedule, and this one has none")
        policy = None if retry is None else to_document(policy_of(retry))
        seconds = None if timeout is None else _timeout(timeout)

        def made(function: Callable[..., Any]) -> AppFlow[..., Any]:
            flow_name = name or function.__name__
            terms = FlowTerms(
                name=flow_name,
                tag=tag,
                tags=tuple(tags),
                schedule=None if schedule is None else _schedule(flow_name, schedule, timezone or "UTC"),
                retry=policy,
                timeout=seconds,
                tool=tool,
            )
            flow = AppFlow(self, function, terms)
            if flow.name in self.flows:
                raise ValueError(f"app {self.name!r} has two flows named {flow.name!r}")
            self.flows[flow.name] = flow
            return flow

        return made if function is None else made(function)

    def run(self, run_id: str) -> RunHandle[Any]:
        """Return the handle of an existing run. Nothing is sent."""
        return self.submitter.handle(run_id)

    def close(self) -> None:
        """Close the connections to the server. The next use opens new ones."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._clients.aclose()

    @cached_property
    def submitter(self) -> Submitter:
        from pyoco_server.app.submitting import Submitter  # noqa: PLC0415 - not for hosts

        return Submitter(self, self._clients)

    def testing(self) -> AbstractContextManager[AppTesting]:
        """Run what is submitted until the end of the block in this process, without a server and in virtual time.

        >>> with app.testing() as t:  # doctest: +SKIP
        ...     run = measure.submit(url="https://example.com")
        ...     t.advance("1h")
        ...     assert run.result() == 1256
        """
        from pyoco_server.testing.block import open_testing  # noqa: PLC0415 - not for hosts

        return open_testing(self)

    @contextmanager
    def served_by(self, clients: Clients) -> Iterator[None]:
        """Submit to another server until the end of the block. Handles stay with the server that they came from."""
        from pyoco_server.app.submitting import Submitter  # noqa: PLC0415 - not for hosts

        earlier, self.submitter = self.submitter, Submitter(self, clients)
        try:
            yield
        finally:
            self.submitter = earlier

    def resolve(self, flow_name: str) -> Flow:
        """Return a flow for a host. Raises KeyError, and whatever building its graph raises."""
        return self.flows[flow_name].graph()

    def offered(self) -> tuple[OfferedFlow, ...]:
        """Return what a worker announces, by name. Builds all graphs, so that a broken one is found at the start."""
        for flow in self.flows.values():
            flow.graph()
        return tuple(self.flows[name].offered() for name in sorted(self.flows))


def _refuse(unknown: Mapping[str, Any]) -> None:
    for name in unknown:
        if name in _LATER:
            raise TypeError(f"option {name!r} is not available in this version; there are {', '.join(_OPTIONS)}")
        nearest = nearest_of(name, _OPTIONS)
        hint = f"did you mean {nearest}? There are" if nearest else "there are"
        raise TypeError(f"a flow has no option {name!r}; {hint} {', '.join(_OPTIONS)}")


def _check_tag(tag: str | None) -> None:
    if tag is not None and not is_tag(tag):
        raise ValueError(f"{tag!r} is not a tag: letters, digits, '_' and '-', at most 128")


def _timeout(value: float | str) -> float:
    try:
        return read_run_timeout(value)
    except ValueError as error:
        raise ValueError(f"timeout {error}") from error


def _schedule(flow_name: str, schedule: str | Mapping[str, Any], timezone: str) -> dict[str, Any]:
    """Return `when` and `timezone`, checked as `POST /schedules` does. Raises ValueError."""
    from pyoco_server.core.schedules.reading import read_schedule  # noqa: PLC0415 - only for flows with a schedule
    from pyoco_server.core.schedules.what import Offer  # noqa: PLC0415

    when = {"cron": schedule} if isinstance(schedule, str) else dict(schedule)
    document = {"when": when, "timezone": timezone}
    try:
        read_schedule(
            {"name": "flow", "what": {"kind": "flow", "flow_name": flow_name}, **document}, time.time(), Offer()
        )
    except InvalidSchedule as error:
        raise ValueError(f"schedule of flow {flow_name!r}: {error}") from error
    return document
