"""How a flow reads the params of a run, attached to the engine's own object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyoco.core.models import Flow

__all__ = ["ReadParams", "keep_reader", "params_for", "with_params_reader"]

#: Returns the values for the tasks. Raises ParamsRefused.
ReadParams = Callable[[Mapping[str, Any]], dict[str, Any]]

_ON_FLOW = "_pyoco_server_read_params"


def with_params_reader(flow: Flow, read: ReadParams) -> Flow:
    """Attach the reader, and return the same flow."""
    setattr(flow, _ON_FLOW, read)
    return flow


def keep_reader(flow: Flow, of: Flow) -> Flow:
    """Attach the reader of another flow, if it has one, and return the first flow."""
    read = getattr(of, _ON_FLOW, None)
    return flow if read is None else with_params_reader(flow, read)


def params_for(flow: Flow, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tasks receive: a copy, because they may modify it (ENG-7), and records show params as submitted.

    Raises ParamsRefused if the flow is one of an app, and its signature does not allow these params.
    """
    read: ReadParams | None = getattr(flow, _ON_FLOW, None)
    return dict(params) if read is None else read(params)
