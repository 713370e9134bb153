"""A flow that an app offers, as its worker announces it (APP-10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["OfferedFlow", "read_offered_flow"]


@dataclass(frozen=True, kw_only=True)
class OfferedFlow:
    """One flow with its signature. All members are plain JSON values, so that any reader may pass them on."""

    name: str
    #: The name of its app.
    app: str
    #: The docstring of its function, without indentation; empty without one.
    doc: str = ""
    #: Tags of the worker that its runs are submitted to by default; empty: those of the worker.
    tags: tuple[str, ...] = ()
    #: JSON Schema of its params: `{"type": "object", "properties", "required"?, "additionalProperties": false}`.
    #: Properties have `default` and `enum` where the signature has them. Empty: dropped for lack of room.
    params: Mapping[str, Any] = field(default_factory=dict)
    #: JSON Schema of its value. None: its function has no return annotation. Empty: any value.
    returns: Mapping[str, Any] | None = None
    #: `when` and `timezone` of its schedule, as `POST /schedules` takes them.
    schedule: Mapping[str, Any] | None = None
    #: The policy of its runs, as in a snapshot.
    retry: Mapping[str, Any] | None = None
    #: Seconds that one try of a run may take.
    timeout: float | None = None
    #: MCP clients may call it as a tool (APP-14).
    tool: bool = False

    def document(self) -> dict[str, Any]:
        """Return the form for hosts, registry records and answers. Every member is present."""
        return {
            "name": self.name,
            "app": self.app,
            "doc": self.doc,
            "tags": list(self.tags),
            "params": dict(self.params),
            "returns": None if self.returns is None else dict(self.returns),
            "schedule": None if self.schedule is None else dict(self.schedule),
            "retry": None if self.retry is None else dict(self.retry),
            "timeout": self.timeout,
            "tool": self.tool,
        }


def read_offered_flow(document: Any) -> OfferedFlow:
    """Decode `OfferedFlow.document`. Members that are missing have their default; unknown ones of later versions are
    ignored. Raises ValueError."""
    members = _members(document, "the flow")
    tags = members.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError("tags are a list of texts")
    timeout = members.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise ValueError("timeout is a number of seconds")
    return OfferedFlow(
        name=_text(members, "name"),
        app=_text(members, "app"),
        doc=_text(members, "doc", ""),
        tags=tuple(tags),
        params=_members(members.get("params", {}), "params"),
        returns=_optional(members, "returns"),
        schedule=_optional(members, "schedule"),
        retry=_optional(members, "retry"),
        timeout=timeout,
        tool=members.get("tool") is True,
    )


def _members(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{what} is not an object")
    return value


def _optional(members: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = members.get(name)
    return None if value is None else _members(value, name)


def _text(members: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = members.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise ValueError(f"{name} is not a text")
    return value
