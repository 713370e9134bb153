"""Parse the dead-letter queries and selections of HTTP requests."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.datastructures import QueryParams

from pyoco_server.actions.walk_dead_letters import Span
from pyoco_server.core.dead_letter import LETTER_ID_LENGTH_MAX, read_letter_id
from pyoco_server.core.programs.names import flow_name_of
from pyoco_server.doors.http.requests import MalformedQuery, decode, wrong
from pyoco_server.errors import Problem
from pyoco_server.ports.dead_letters.port import DeadLetterFilter

__all__ = [
    "CURSOR_LENGTH_MAX",
    "FILTERS",
    "LETTER_ID_LENGTH_MAX",
    "LIMIT_DEFAULT",
    "LIMIT_MAX",
    "NAME_LENGTH_MAX",
    "PAGE_DEFAULT",
    "PAGE_MAX",
    "DeadLetterQuery",
    "read_letter_deletion",
    "read_letter_query",
    "read_letter_selection",
    "write_cursor",
]

#: Each filter narrows the selection.
FILTERS = ("reason", "flow", "tag", "run_id", "exec", "client_id", "group")
NAME_LENGTH_MAX = 512
CURSOR_LENGTH_MAX = 64
PAGE_DEFAULT, PAGE_MAX = 50, 200
LIMIT_DEFAULT, LIMIT_MAX = 1000, 10_000

_CURSOR = "dlq1."


@dataclass(frozen=True)
class DeadLetterQuery:
    """A parsed `GET /dlq` query."""

    wanted: DeadLetterFilter
    limit: int
    before: int | None


def write_cursor(before: int | None) -> str | None:
    return None if before is None else base64.urlsafe_b64encode(f"{_CURSOR}{before}".encode()).decode().rstrip("=")


def _read_cursor(text: str) -> int | None:
    """Return None if it is not our token. Each number has exactly one valid form: the one `write_cursor` produces."""
    if len(text) > CURSOR_LENGTH_MAX or not text.isascii():
        return None
    try:
        plain = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return None
    before = read_letter_id(plain.removeprefix(_CURSOR))
    return before if before is not None and write_cursor(before) == text else None


def read_letter_query(query: QueryParams) -> DeadLetterQuery:
    """Raises MalformedQuery with every bad value. Unknown names are ignored (FLOW-44)."""
    problems: list[Problem] = []
    wanted = _filter(query, problems)
    limit = _limit(query, PAGE_DEFAULT, PAGE_MAX, problems)
    before = _read_cursor(query["cursor"]) if "cursor" in query else None
    if "cursor" in query and before is None:
        problems.append(_problem("cursor", "is not one that a list was answered with"))
    if "before" in query:
        if "cursor" in query:
            problems.append(_problem("before", "cannot be combined with `cursor`: give one or the other"))
        before = read_letter_id(query["before"])
        if before is None:
            problems.append(_problem("before", _NO_ID))
    _refuse(problems)
    return DeadLetterQuery(wanted, limit, before)


def read_letter_deletion(query: QueryParams) -> tuple[DeadLetterFilter, Span]:
    """Read which letters to delete. Raises MalformedQuery with every bad value.

    A misspelt filter would delete every letter: unlike elsewhere (FLOW-44), unknown names are refused here.
    """
    problems: list[Problem] = []
    wanted = _filter(query, problems)
    limit = _limit(query, LIMIT_DEFAULT, LIMIT_MAX, problems)
    newest = read_letter_id(query["up_to"]) if "up_to" in query else None
    if "up_to" in query and newest is None:
        problems.append(_problem("up_to", _NO_ID))
    known = {*FILTERS, "limit", "all", "up_to"}
    problems += [_problem(name[:NAME_LENGTH_MAX], "is not known here") for name in query if name not in known]
    if query.get("all", "true") not in ("true", "false"):
        problems.append(_problem("all", "must be true or false"))
    if wanted == DeadLetterFilter() and query.get("all") != "true":
        problems.append(
            Problem(("query",), "nothing says which letters to delete: give a filter, or all=true", "missing")
        )
    _refuse(problems)
    return wanted, Span(limit, _below(newest))


_ONCE = (*FILTERS, "limit", "cursor", "before", "all", "up_to")
_NO_ID = "is not the id of a letter"


def _below(newest: int | None) -> int | None:
    """Return the exclusive upper bound. Ids grow over time, so letters added after `newest` are excluded."""
    return None if newest is None else newest + 1


def _filter(query: QueryParams, problems: list[Problem]) -> DeadLetterFilter:
    problems += [_problem(name, "is given more than once") for name in _ONCE if len(query.getlist(name)) > 1]
    for name in FILTERS:
        if len(query.get(name, "")) > NAME_LENGTH_MAX:
            problems.append(_problem(name, f"has at most {NAME_LENGTH_MAX} characters"))
    wanted = _wanted({name: query.get(name) for name in FILTERS})
    if wanted is None:
        problems.append(_problem("exec", _TWO_FLOWS))
    return wanted or DeadLetterFilter()


_TWO_FLOWS = "is another program than `flow` says: give one or the other"


def _wanted(asked: Mapping[str, str | None]) -> DeadLetterFilter | None:
    """Build the filter; a program matches as a flow name (GRID-150). Returns None if `exec` and `flow` contradict."""
    program, flow = asked["exec"], asked["flow"]
    if program is not None:
        if flow not in {None, flow_name_of(program)}:
            return None
        flow = flow_name_of(program)
    given = {name: asked[name] for name in FILTERS if name not in {"exec", "flow"}}
    return DeadLetterFilter(flow=flow, **given)  # type: ignore[arg-type]  # the tenant is not among them


def _limit(query: QueryParams, default: int, highest: int, problems: list[Problem]) -> int:
    text = query.get("limit", str(default))
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0
    if not 1 <= limit <= highest:
        problems.append(_problem("limit", f"must be a whole number from 1 to {highest}"))
    return limit


def _problem(name: str, message: str) -> Problem:
    return Problem(("query", name), message, "value")


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise MalformedQuery(problems[0].msg, problems=tuple(problems))


_Name = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]


class _Selection(msgspec.Struct, forbid_unknown_fields=True):
    """A misspelt filter would redrive every letter, so unknown fields are refused."""

    reason: _Name | None = None
    flow: _Name | None = None
    tag: _Name | None = None
    run_id: _Name | None = None
    exec: _Name | None = None
    client_id: _Name | None = None
    group: _Name | None = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] | None = None
    cursor: Annotated[str, Meta(max_length=CURSOR_LENGTH_MAX)] | None = None
    all: bool = False
    up_to: Annotated[str, Meta(max_length=LETTER_ID_LENGTH_MAX)] | None = None


_read_selection = msgspec.json.Decoder(_Selection).decode


def read_letter_selection(body: bytes) -> tuple[DeadLetterFilter, Span]:
    """Read which letters to redrive. Raises Malformed with every problem and its location."""
    wire: _Selection = decode(_read_selection, body)
    wanted = _wanted({name: getattr(wire, name) for name in FILTERS})
    if wanted is None:
        raise wrong(("body", "exec"), _TWO_FLOWS, "value")
    if wanted == DeadLetterFilter() and not wire.all:
        message = 'nothing says which letters to redrive: give a filter, or `"all": true`'
        raise wrong(("body",), message, "missing")
    before = newest = None
    if wire.cursor is not None:
        before = _read_cursor(wire.cursor)
        if before is None:
            raise wrong(("body", "cursor"), "is not one that a request was answered with", "value")
    if wire.up_to is not None:
        newest = read_letter_id(wire.up_to)
        if newest is None:
            raise wrong(("body", "up_to"), _NO_ID, "value")
    bounds = [bound for bound in (before, _below(newest)) if bound is not None]
    return wanted, Span(wire.limit or LIMIT_DEFAULT, min(bounds, default=None))
