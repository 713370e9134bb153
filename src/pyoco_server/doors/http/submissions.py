"""Parse submissions of HTTP requests: single, batch and re-run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest

from pyoco_server.actions.rerun import UNCHANGED, RerunChange
from pyoco_server.actions.submit import Accepted
from pyoco_server.core.delays import Delay, delay_problem
from pyoco_server.core.fingerprint import item_key
from pyoco_server.core.run import Submission
from pyoco_server.doors.http.reading import read_document
from pyoco_server.doors.http.requests import JSON_BYTES_MAX, Malformed, wrong
from pyoco_server.doors.http.retries import MaybeRetry, MaybeRetryText, MaybeTimeout, read_retry
from pyoco_server.doors.http.shapes import (
    FLOW_WARNING,
    Absent,
    Duration,
    File,
    FormRequest,
    Instant,
    Request,
    RunId,
    Tag,
    pattern,
    schema_of,
)
from pyoco_server.ports.backend import Backend

__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_ITEMS_MAX",
    "KEY_LENGTH_MAX",
    "KEY_PARAMETER",
    "REPLAYED",
    "Defaults",
    "Item",
    "MaybeDelay",
    "MaybeNotBefore",
    "RunAccepted",
    "RunBatchItem",
    "RunBatchRequest",
    "RunCancelRequest",
    "RunRerunRequest",
    "RunSubmitRequest",
    "RunSubmitYamlRequest",
    "defaults_of",
    "read_batch",
    "read_cancel",
    "read_change",
    "read_delay",
    "read_key",
    "read_submission",
    "warning_of",
]

NAME_LENGTH_MAX = 512
TAGS_MAX = 100
DEPTH_MAX = 64
#: Lists and objects in one body. A snapshot at its default cap holds fewer than half as many.
PARTS_MAX = 100_000
BATCH_ITEMS_MAX = 1000
BATCH_BYTES_MAX = 8 * 1024 * 1024
KEY_LENGTH_MAX = 255
REASON_LENGTH_MAX = 4096
#: The longest grace period of a cancel request, in seconds.
CANCEL_GRACE_MAX = 3600

_KEY = re.compile(rf"[!-~]{{1,{KEY_LENGTH_MAX}}}", re.ASCII)
_KEY_RULE = f"must be 1 to {KEY_LENGTH_MAX} visible ASCII characters"

#: Marks a response that repeats an earlier one.
REPLAYED = {"Idempotency-Replayed": "true"}
#: For the OpenAPI document.
KEY_PARAMETER: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": "^[!-~]+$", "minLength": 1, "maxLength": KEY_LENGTH_MAX},
    "description": (
        "Send the same submission again under the same key as often as you like: it is accepted once, and each time "
        "answered with the first answer; a repeat says so in the header `Idempotency-Replayed: true`. Another "
        "submission under the same key is refused with 409. "
        "Keys are remembered for `PYOCO_IDEMPOTENCY_TTL_SEC`, a day unless set."
    ),
}


FlowName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Labels = Annotated[list[Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]], Meta(max_length=TAGS_MAX)]
IdempotencyKey = Annotated[str, pattern("^[!-~]+$", _KEY_RULE, min_length=1, max_length=KEY_LENGTH_MAX)]


_DELAY = "Start this long after acceptance, at most `PYOCO_DELAY_MAX_SEC`; not together with `not_before`."
_NOT_BEFORE = "Do not start before this instant; one in the past means no delay."
MaybeDelay = Annotated[Duration, Meta(description=_DELAY)] | None
MaybeNotBefore = Annotated[Instant, Meta(description=_NOT_BEFORE)] | None


class RunSubmitRequest(Request):
    """A run of a named flow."""

    flow_name: FlowName
    params: dict[str, Any] | None = None
    tag: Tag | None = None
    tags: Labels | None = None
    delay: MaybeDelay = None
    not_before: MaybeNotBefore = None
    retry: MaybeRetry = msgspec.UNSET
    timeout: MaybeTimeout = None


class RunSubmitYamlRequest(FormRequest):
    """A run of an uploaded flow. Its params are the file's flow.defaults."""

    workflow: Annotated[File, Meta(description="The flow.yaml, UTF-8.")]
    flow_name: FlowName
    tag: Tag | None = None
    delay: MaybeDelay = None
    not_before: MaybeNotBefore = None
    retry: MaybeRetryText = None
    timeout: MaybeTimeout = None


class RunBatchItem(RunSubmitRequest):
    """A run of a named flow, with an optional idempotency key of its own."""

    idempotency_key: IdempotencyKey | None = None


_RawItem = Annotated[msgspec.Raw, Meta(extra_json_schema=schema_of(RunBatchItem))]


class RunBatchRequest(Request):
    __doc__ = f"1 to {BATCH_ITEMS_MAX} submissions, {BATCH_BYTES_MAX >> 20} MiB at most."

    #: Decoded separately, so that one invalid item does not stop the others.
    runs: Annotated[list[_RawItem], Meta(min_length=1, max_length=BATCH_ITEMS_MAX)]


class RunRerunRequest(Request):
    """The changes. `params` are merged over the old ones, and are allowed for named flows only."""

    params: dict[str, Any] | None = None
    tag: Tag | None = None
    tags: Labels | None = None
    delay: MaybeDelay = None
    not_before: MaybeNotBefore = None
    retry: MaybeRetry = msgspec.UNSET
    timeout: MaybeTimeout = None


class RunCancelRequest(Request):
    """An optional reason, and how long the work may take to stop."""

    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)] | None = None
    grace_sec: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=CANCEL_GRACE_MAX,
                description="Seconds until the work is killed, unless it stops before; programs have 5 at most. "
                "A repeated request may only shorten it. [default: PYOCO_CANCEL_GRACE_PERIOD_SEC]",
            ),
        ]
        | None
    ) = None


class RunAccepted(msgspec.Struct, kw_only=True):
    """The run is recorded and queued; both are durable."""

    run_id: RunId
    status: Literal["PENDING"]
    warning: Annotated[str, Meta(description=FLOW_WARNING)] | Absent = msgspec.UNSET


def warning_of(accepted: Accepted) -> str | Absent:
    return msgspec.UNSET if accepted.warning is None else accepted.warning


class Defaults(NamedTuple):
    """What a submission is completed with, and checked against."""

    tag: str
    now: float
    delay_seconds_max: float


def defaults_of(backend: Backend) -> Defaults:
    return Defaults(backend.config.default_tag, backend.clock(), backend.config.delay_max_sec)


def read_delay(delay: float | None, not_before: float | None, defaults: Defaults) -> Delay:
    """Raises Malformed, naming the bound (DELAY-2, DELAY-3)."""
    asked = Delay(delay, not_before)
    problem = delay_problem(asked, defaults.now, defaults.delay_seconds_max, "PYOCO_DELAY_MAX_SEC")
    if problem is not None:
        raise wrong(("body", problem[0]), problem[1], "delay")
    return asked


class Item(NamedTuple):
    """One submission of a batch, and its idempotency key."""

    ask: Submission
    key: str | None


def read_key(request: HttpRequest) -> str | None:
    """Return the `Idempotency-Key`, or None if it is missing. Raises Malformed."""
    found = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
    if not found:
        return None
    where = ("header", "Idempotency-Key")
    if len(found) > 1:
        raise wrong(where, "is given twice", "repeated")
    key: str = found[0].decode("latin-1").strip(" \t")
    if not _KEY.fullmatch(key):
        raise wrong(where, _KEY_RULE, "pattern")
    return key


def read_submission(body: bytes, defaults: Defaults) -> Submission:
    """Raises Malformed with every problem and its location (FLOW-70)."""
    return _submission(read_document(RunSubmitRequest, body), body, defaults)


def read_batch(body: bytes, defaults: Defaults, key: str | None) -> list[Item | Malformed]:
    """Return the submissions in order; in place of each invalid one, its error. O(size).

    Raises Malformed if the body is not a batch. An item without a key of its own gets one derived from `key`.
    """
    items: list[Item | Malformed] = []
    for index, raw in enumerate(read_document(RunBatchRequest, body).runs):
        try:
            items.append(_item(bytes(raw), defaults, None if key is None else item_key(key, index)))
        except Malformed as error:
            items.append(_placed(error, index))
    return items


def _item(body: bytes, defaults: Defaults, key: str | None) -> Item:
    if len(body) > JSON_BYTES_MAX:
        raise wrong(("body",), f"has at most {JSON_BYTES_MAX} bytes", "too_long")
    asked = read_document(RunBatchItem, body)
    return Item(_submission(asked, body, defaults), key if asked.idempotency_key is None else asked.idempotency_key)


def _placed(error: Malformed, index: int) -> Malformed:
    """Prefix the locations with the item's position in the batch."""
    problems = tuple(replace(item, loc=("body", "runs", index, *item.loc[1:])) for item in error.problems)
    return Malformed(str(error), problems=problems)


def read_change(body: bytes, defaults: Defaults) -> RerunChange:
    """Read the changes of a re-run; an empty body means none. Raises Malformed."""
    if not body.strip():
        return UNCHANGED
    asked = read_document(RunRerunRequest, body)
    _check_depth(asked.params or {}, body)
    delay = read_delay(asked.delay, asked.not_before, defaults)
    tags = None if asked.tags is None else tuple(asked.tags)
    retry = read_retry(asked.retry)
    return RerunChange(params=asked.params, tag=asked.tag, tags=tags, delay=delay, retry=retry, timeout=asked.timeout)


def read_cancel(body: bytes) -> RunCancelRequest:
    """FLOW-115: an empty body is valid. Raises Malformed."""
    return read_document(RunCancelRequest, body) if body.strip() else RunCancelRequest()


def _submission(asked: RunSubmitRequest, body: bytes, defaults: Defaults) -> Submission:
    tag = defaults.tag if asked.tag is None else asked.tag
    params = asked.params or {}
    _check_depth(params, body)
    tags = (tag,) if asked.tags is None else tuple(asked.tags)
    delay = read_delay(asked.delay, asked.not_before, defaults)
    return Submission(
        flow_name=asked.flow_name,
        tag=tag,
        tags=tags,
        params=params,
        delay=delay,
        retry=read_retry(asked.retry),
        timeout=asked.timeout,
    )


def _check_depth(params: dict[str, Any], body: bytes) -> None:
    # Deep values need many brackets: small bodies need no check.
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX and _is_too_deep(params):
        raise wrong(("body", "params"), f"is nested more than {DEPTH_MAX} deep, or has too many parts", "too_deep")


def _is_too_deep(value: Any) -> bool:
    """Return whether the value is nested too deeply, or has more lists and objects than a snapshot can hold."""
    level, left = [value], PARTS_MAX
    for _ in range(DEPTH_MAX + 1):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]
        left -= len(level)
        if not level:
            return False
        if left < 0:
            return True
    return True
