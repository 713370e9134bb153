"""Parse the query of `GET /runs`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.names import flow_name_of, is_client_id, is_exec_name, is_group, read_job_id
from pyoco_server.core.states import UNKNOWN, RunState
from pyoco_server.doors.http.cursors import BadCursor, read_cursor
from pyoco_server.doors.http.requests import (
    NOT_AN_INSTANT,
    MalformedQuery,
    read_flag,
    read_instant,
    wants_records,
)
from pyoco_server.errors import Problem
from pyoco_server.ports.index.port import EVERYBODY, ListPosition, RunFilter

__all__ = ["KINDS", "LIMIT_DEFAULT", "LIMIT_MAX", "ListQuery", "read_list_query"]

LIMIT_DEFAULT = 50
LIMIT_MAX = 200
KINDS = ("exec", "flow", "pack")

_SHA256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
#: Prefix of a run id. Fewer characters would hardly filter anything.
_RUN_ID_PREFIX = re.compile(r"[0-9a-fA-F-]{4,36}", re.ASCII)
_LIMIT = re.compile(r"[0-9]{1,4}", re.ASCII)
#: Parameters that may appear once. All others are ignored.
_ONCE = (
    "status",
    "flow",
    "tag",
    "kind",
    "workflow_yaml_sha256",
    "run_id",
    "job_id",
    "client_id",
    "group",
    "exec",
    "limit",
    "updated_after",
    "cursor",
    "envelope",
)


@dataclass(frozen=True)
class ListQuery:
    #: Includes the caller's tenant, which is part of what a cursor is bound to.
    wanted: RunFilter
    limit: int
    after: ListPosition | None
    #: Return complete snapshots instead of list entries.
    whole: bool
    #: Return an object with `items` and `next_cursor` instead of an array (FLOW-107, FLOW-108).
    envelope: bool


def read_list_query(query: QueryParams, tenant_id: str | None) -> ListQuery:
    """FLOW-97 to FLOW-105. Raises MalformedQuery with every bad value (FLOW-106)."""
    reader = _Reader(query)
    sha256 = reader.sha256()
    wanted = RunFilter(
        tenant_id=tenant_id or EVERYBODY,
        status=reader.one_of("status", (*RunState.__members__, UNKNOWN)),
        flow=reader.flow(),
        tag=reader.text("tag"),
        kind=reader.one_of("kind", KINDS),
        workflow_yaml_sha256=sha256,
        updated_after=reader.updated_after(),
        run_id_prefix=reader.run_id_prefix(),
        job_id=reader.job_id(),
        client_id=reader.name("client_id", is_client_id, "must be 1 to 64 letters, digits, '_' or '-'"),
        group=reader.name("group", is_group, "must be 1 to 32 letters, digits, '_' or '-'"),
    )
    limit, envelope = reader.limit(), reader.envelope()
    after = reader.cursor(wanted)
    if reader.problems:
        raise MalformedQuery(reader.problems[0].msg, problems=tuple(reader.problems))
    is_object = envelope or after is not None or wanted.updated_after is not None
    return ListQuery(wanted, limit, after, wants_records(query), is_object)


class _Reader:
    """Parses one value at a time and collects the problems."""

    def __init__(self, query: QueryParams) -> None:
        self.problems: list[Problem] = []
        self._given: dict[str, str] = {}
        for name in _ONCE:
            values = query.getlist(name)
            if len(values) > 1:
                self._wrong(name, "is given more than once")
            elif values:
                self._given[name] = values[0]

    def _wrong(self, name: str, message: str) -> None:
        self.problems.append(Problem(("query", name), message, "value"))

    def text(self, name: str) -> str | None:
        return self._given.get(name)

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str | None:
        text = self._given.get(name)
        if text is not None and text not in allowed:
            self._wrong(name, f"must be one of {', '.join(allowed)}")
        return text

    def sha256(self) -> str | None:
        text = self._given.get("workflow_yaml_sha256")
        if text is not None and not _SHA256.fullmatch(text):
            self._wrong("workflow_yaml_sha256", "must be 64 hex digits")
        return None if text is None else text.lower()

    def run_id_prefix(self) -> str | None:
        text = self._given.get("run_id")
        if text is not None and not _RUN_ID_PREFIX.fullmatch(text):
            self._wrong("run_id", "must be the first 4 to 36 characters of a run id")
        return None if text is None else text.lower()

    def name(self, name: str, fits: Callable[[object], bool], rule: str) -> str | None:
        text = self._given.get(name)
        if text is not None and not fits(text):
            self._wrong(name, rule)
        return text

    def flow(self) -> str | None:
        """A program matches as a flow name (GRID-150): `exec=calcA` is `flow=exec:calcA`."""
        flow = self._given.get("flow")
        program = self.name("exec", is_exec_name, "must be the name of a program: letters, digits, '_' and '-'")
        if program is None:
            return flow
        if flow not in {None, flow_name_of(program)}:
            self._wrong("exec", "is another program than `flow` says: give one or the other")
        return flow_name_of(program)

    def job_id(self) -> str | None:
        text = self._given.get("job_id")
        if text is None:
            return None
        try:
            return read_job_id(text)
        except GridRefused as error:
            self._wrong("job_id", error.message)
            return None

    def limit(self) -> int:
        text = self._given.get("limit", str(LIMIT_DEFAULT))
        limit = int(text) if _LIMIT.fullmatch(text) else 0
        if not 1 <= limit <= LIMIT_MAX:
            self._wrong("limit", f"must be a whole number from 1 to {LIMIT_MAX}")
        return limit

    def updated_after(self) -> float | None:
        text = self._given.get("updated_after")
        if text is None:
            return None
        instant = read_instant(text)
        if instant is None:
            self._wrong("updated_after", NOT_AN_INSTANT)
        return instant

    def envelope(self) -> bool:
        flag = read_flag(self._given.get("envelope", "false"))
        if flag is None:
            self._wrong("envelope", "must be true or false")
        return flag is True

    def cursor(self, wanted: RunFilter) -> ListPosition | None:
        token = self._given.get("cursor")
        if token is None:
            return None
        try:
            place, is_of = read_cursor(token)
        except BadCursor as error:
            self._wrong("cursor", str(error))
            return None
        # A cursor can only be checked against valid filters.
        if not self.problems and not is_of(wanted):
            self._wrong("cursor", "belongs to a list with other filters; send it with those of the first page")
        return place
