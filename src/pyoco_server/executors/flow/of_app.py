"""What the app of a flow decides about its runs, attached to the engine's own object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyoco.core.models import Flow

__all__ = ["OfApp", "graph_for", "keep_app", "params_for", "pickles", "with_app"]

_ON_FLOW = "_pyoco_server_of_app"


@dataclass(frozen=True)
class OfApp:
    """A flow without an app takes its params as they are."""

    #: Returns the values for the tasks. Raises ParamsRefused.
    read_params: Callable[[Mapping[str, Any]], dict[str, Any]]
    #: Values that nothing else can encode are pickled (RES-23).
    pickles: bool = False
    #: Returns the flow of one run by its params, where they say which tasks there are. Raises ParamsRefused.
    graph: Callable[[Mapping[str, Any]], Flow] | None = None


def with_app(flow: Flow, of_app: OfApp) -> Flow:
    """Attach it, and return the same flow."""
    setattr(flow, _ON_FLOW, of_app)
    return flow


def keep_app(flow: Flow, of: Flow) -> Flow:
    """Attach what another flow has, and return the first one."""
    of_app = _of(of)
    return flow if of_app is None else with_app(flow, of_app)


def graph_for(flow: Flow, params: Mapping[str, Any]) -> Flow:
    """Return the flow that a run with these params executes. Raises ParamsRefused."""
    of_app = _of(flow)
    return flow if of_app is None or of_app.graph is None else of_app.graph(params)


def params_for(flow: Flow, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tasks receive: a copy, because they may modify it (ENG-7), and records show params as submitted.

    Raises ParamsRefused if the flow is one of an app, and its signature does not allow these params.
    """
    of_app = _of(flow)
    return dict(params) if of_app is None else of_app.read_params(params)


def pickles(flow: Flow) -> bool:
    of_app = _of(flow)
    return of_app is not None and of_app.pickles


def _of(flow: Flow) -> OfApp | None:
    of_app = getattr(flow, _ON_FLOW, None)
    return of_app if isinstance(of_app, OfApp) else None
