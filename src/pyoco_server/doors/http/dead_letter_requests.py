"""Parse the dead-letter queries and selections of HTTP requests."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta
from starlette.datastructures import QueryParams

from pyoco_server.actions.walk_dead_letters import Span
from pyoco_server.core.dead_letter import LETTER_ID_LENGTH_MAX, read_letter_id
from pyoco_server.core.programs.names import flow_name_of
from pyoco_server.doors.http.reading import Reading, read_document, read_query
from pyoco_server.doors.http.requests import Malformed, MalformedQuery, wrong
from pyoco_server.doors.http.shapes import Request, one_of
from pyoco_server.errors import Problem
from pyoco_server.ports.dead_letters.port import DeadLetterFilter

__all__ = [
    "DeadLetterQuery",
    "DeadLettersDeletion",
    "DeadLettersQuery",
    "DeadLettersRedriveRequest",
    "read_dead_letter_deletion",
    "read_dead_letter_query",
    "read_dead_letter_selection",
    "write_cursor",
]

NAME_LENGTH_MAX = 512
CURSOR_LENGTH_MAX = 64
PAGE_DEFAULT, PAGE_MAX = 50, 200
LIMIT_DEFAULT, LIMIT_MAX = 1000, 10_000

_CURSOR = "dlq1."

_Text = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
_UP_TO = "The `id` of the newest letter to include: later ones are skipped. It does not count as a filter."
_LetterId = Annotated[str, Meta(extra_json_schema={"pattern": "^[1-9][0-9]*$", "maxLength": LETTER_ID_LENGTH_MAX})]
_Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Maximum number of letters.")]


class _Filters(Request):
    """Each narrows the selection."""

    reason: Annotated[_Text, Meta(description="Exact reason.")] | None = None
    flow: Annotated[_Text, Meta(description="Exact flow name; empty: letters without a flow name.")] | None = None
    tag: Annotated[_Text, Meta(description="The routing tag, or one of the labels.")] | None = None
    run_id: Annotated[_Text, Meta(description="Letters of this run.")] | None = None
    exec: Annotated[_Text, Meta(description="Letters of this program, as `flow=exec:NAME`.")] | None = None
    client_id: Annotated[_Text, Meta(description="Letters of jobs of this client.")] | None = None
    group: Annotated[_Text, Meta(description="Letters of jobs of this group.")] | None = None


class DeadLettersQuery(_Filters):
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Maximum number of letters.")] = PAGE_DEFAULT
    cursor: (
        Annotated[
            str,
            Meta(description="`next_cursor` of the page before.", extra_json_schema={"maxLength": CURSOR_LENGTH_MAX}),
        ]
        | None
    ) = None
    before: (
        Annotated[_LetterId, Meta(description="Letters with a smaller `id`: `next` of the page before, or any.")] | None
    ) = None


class DeadLettersDeletion(_Filters):
    limit: _Limit = LIMIT_DEFAULT
    all: Annotated[str, one_of(("true", "false"), description="`true`: every letter, when no filter is set.")] = "false"
    up_to: Annotated[_LetterId, Meta(description=_UP_TO)] | None = None


class DeadLettersRedriveRequest(_Filters):
    """Which letters: filters (all must match), or `all`. Unknown fields are refused."""

    limit: Annotated[_Limit, Meta(extra_json_schema={"default": LIMIT_DEFAULT})] | None = None
    cursor: Annotated[str, Meta(max_length=CURSOR_LENGTH_MAX)] | None = None
    all: bool = False
    up_to: Annotated[_LetterId, Meta(max_length=LETTER_ID_LENGTH_MAX, description=_UP_TO)] | None = None


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


def read_dead_letter_query(query: QueryParams) -> DeadLetterQuery:
    """Raises the refusal with every bad value and every unknown name."""
    reading = read_query(DeadLettersQuery, query)
    asked = reading.value
    wanted = _wanted_of(reading)
    before = None if asked.cursor is None else _read_cursor(asked.cursor)
    if asked.cursor is not None and before is None:
        reading.wrong("cursor", "is not one that a list was answered with")
    if asked.before is not None:
        if asked.cursor is not None:
            reading.wrong("before", "cannot be combined with `cursor`: give one or the other")
        before = read_letter_id(asked.before)
        if before is None:
            reading.wrong("before", _NO_ID)
    reading.checked(MalformedQuery, unknown=Malformed)
    return DeadLetterQuery(wanted, asked.limit, before)


def read_dead_letter_deletion(query: QueryParams) -> tuple[DeadLetterFilter, Span]:
    """Read which letters to delete. Raises the refusal with every bad value and every unknown name.

    Only the text `true` selects all letters, not the other forms of a flag.
    """
    reading = read_query(DeadLettersDeletion, query)
    asked = reading.value
    wanted = _wanted_of(reading)
    newest = None if asked.up_to is None else read_letter_id(asked.up_to)
    if asked.up_to is not None and newest is None:
        reading.wrong("up_to", _NO_ID)
    if wanted == DeadLetterFilter() and asked.all != "true":
        message = "nothing says which letters to delete: give a filter, or all=true"
        reading.problems.append(Problem(("query",), message, "missing"))
    reading.checked(MalformedQuery, unknown=Malformed)
    return wanted, Span(asked.limit, _below(newest))


_NO_ID = "is not the id of a letter"


def _below(newest: int | None) -> int | None:
    """Return the exclusive upper bound. Ids grow over time, so letters added after `newest` are excluded."""
    return None if newest is None else newest + 1


def _wanted_of(reading: Reading[Any]) -> DeadLetterFilter:
    wanted = _wanted(reading.value)
    if wanted is None:
        reading.wrong("exec", _TWO_FLOWS)
    return wanted or DeadLetterFilter()


_TWO_FLOWS = "is another program than `flow` says: give one or the other"


def _wanted(asked: _Filters) -> DeadLetterFilter | None:
    """Build the filter; a program matches as a flow name (GRID-150). Returns None if `exec` and `flow` contradict."""
    flow = asked.flow
    if asked.exec is not None:
        if flow not in {None, flow_name_of(asked.exec)}:
            return None
        flow = flow_name_of(asked.exec)
    return DeadLetterFilter(
        flow=flow,
        reason=asked.reason,
        tag=asked.tag,
        run_id=asked.run_id,
        client_id=asked.client_id,
        group=asked.group,
    )


def read_dead_letter_selection(body: bytes) -> tuple[DeadLetterFilter, Span]:
    """Read which letters to redrive. Raises Malformed with every problem and its location."""
    asked = read_document(DeadLettersRedriveRequest, body)
    wanted = _wanted(asked)
    if wanted is None:
        raise wrong(("body", "exec"), _TWO_FLOWS, "value")
    if wanted == DeadLetterFilter() and not asked.all:
        message = 'nothing says which letters to redrive: give a filter, or `"all": true`'
        raise wrong(("body",), message, "missing")
    before = newest = None
    if asked.cursor is not None:
        before = _read_cursor(asked.cursor)
        if before is None:
            raise wrong(("body", "cursor"), "is not one that a request was answered with", "value")
    if asked.up_to is not None:
        newest = read_letter_id(asked.up_to)
        if newest is None:
            raise wrong(("body", "up_to"), _NO_ID, "value")
    bounds = [bound for bound in (before, _below(newest)) if bound is not None]
    return wanted, Span(asked.limit or LIMIT_DEFAULT, min(bounds, default=None))
