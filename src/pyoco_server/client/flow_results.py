"""Response types for flows that workers announce. Plain dicts, as in `results`."""

from __future__ import annotations

from typing import Any, TypedDict

__all__ = ["FlowList", "FlowShown"]


class FlowShown(TypedDict):
    """A flow of an app, as the live workers that serve it announce it."""

    name: str
    app: str
    #: Empty: there is none, or there was no room for it.
    doc: str
    #: The `tags` of its runs. Empty: as for any submission.
    tags: list[str]
    #: The routing tag to submit it with.
    tag: str
    #: JSON Schema of its params. Empty: unknown, there was no room for it.
    params: dict[str, Any]
    #: JSON Schema of its result. None: not declared. Empty: any value.
    returns: dict[str, Any] | None
    #: `when` and `timezone` of its own schedule.
    schedule: dict[str, Any] | None
    retry: dict[str, Any] | None
    timeout: float | None
    #: MCP clients may call it as the tool `flow_<name>`.
    tool: bool
    #: The ids of the live workers that offer it.
    workers: list[str]
    #: Live workers announce different signatures; this is one of them.
    conflict: bool


class FlowList(TypedDict):
    """A page of flows, by name."""

    items: list[FlowShown]
    next_cursor: str | None
