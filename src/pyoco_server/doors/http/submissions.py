"""Parse submissions of HTTP requests: single, batch and re-run."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request

from pyoco_server.actions.rerun import UNCHANGED, Change
from pyoco_server.core.fingerprint import item_key
from pyoco_server.core.names import is_tag
from pyoco_server.core.run import Submission
from pyoco_server.doors.http.requests import JSON_BYTES_MAX, Malformed, decode, wrong
from pyoco_server.errors import Problem

__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_ITEMS_MAX",
    "KEY_LENGTH_MAX",
    "KEY_PARAMETER",
    "REPLAYED",
    "Item",
    "check_flow_name",
    "check_tag",
    "read_batch",
    "read_change",
    "read_key",
    "read_submission",
]

NAME_LENGTH_MAX = 512
TAGS_MAX = 100
DEPTH_MAX = 64
#: Lists and objects in one body. A snapshot at its default cap holds fewer than half as many.
PARTS_MAX = 100_000
BATCH_ITEMS_MAX = 1000
BATCH_BYTES_MAX = 8 * 1024 * 1024
KEY_LENGTH_MAX = 255

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


class _Submit(msgspec.Struct):
    """FLOW-65 to FLOW-68. Unknown fields are ignored (FLOW-44)."""

    flow_name: str
    params: dict[str, Any] | None = None
    tag: str | None = None
    tags: list[str] | None = None


class _Item(_Submit):
    idempotency_key: str | None = None


class _Batch(msgspec.Struct):
    #: Decoded separately, so that one invalid item does not stop the others.
    runs: list[msgspec.Raw]


class _Change(msgspec.Struct):
    params: dict[str, Any] | None = None
    tag: str | None = None
    tags: list[str] | None = None


_read_submit = msgspec.json.Decoder(_Submit).decode
_read_item = msgspec.json.Decoder(_Item).decode
_read_batch = msgspec.json.Decoder(_Batch).decode
_read_change = msgspec.json.Decoder(_Change).decode


class Item(NamedTuple):
    """One submission of a batch, and its idempotency key."""

    ask: Submission
    key: str | None


def read_key(request: Request) -> str | None:
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


def read_submission(body: bytes, default_tag: str) -> Submission:
    """Raises Malformed with the problem and its location (FLOW-70)."""
    return _submission(decode(_read_submit, body), body, default_tag)


def read_batch(body: bytes, default_tag: str, key: str | None) -> list[Item | Malformed]:
    """Return the submissions in order; in place of each invalid one, its error. O(size).

    Raises Malformed if the body is not a batch. An item without a key of its own gets one derived from `key`.
    """
    raws = decode(_read_batch, body).runs
    if not 1 <= len(raws) <= BATCH_ITEMS_MAX:
        raise wrong(("body", "runs"), f"must have 1 to {BATCH_ITEMS_MAX} items; it has {len(raws)}", "length")
    items: list[Item | Malformed] = []
    for index, raw in enumerate(raws):
        try:
            items.append(_item(bytes(raw), default_tag, None if key is None else item_key(key, index)))
        except Malformed as error:
            items.append(_placed(error, index))
    return items


def _item(body: bytes, default_tag: str, key: str | None) -> Item:
    if len(body) > JSON_BYTES_MAX:
        raise wrong(("body",), f"has at most {JSON_BYTES_MAX} bytes", "too_long")
    wire: _Item = decode(_read_item, body)
    if wire.idempotency_key is not None:
        if not _KEY.fullmatch(wire.idempotency_key):
            raise wrong(("body", "idempotency_key"), _KEY_RULE, "pattern")
        key = wire.idempotency_key
    return Item(_submission(wire, body, default_tag), key)


def _placed(error: Malformed, index: int) -> Malformed:
    """Prefix the locations with the item's position in the batch."""
    problems = tuple(Problem(("body", "runs", index, *item.loc[1:]), item.msg, item.type) for item in error.problems)
    return Malformed(str(error), problems=problems)


def read_change(body: bytes) -> Change:
    """Read the changes of a re-run; an empty body means none. Raises Malformed."""
    if not body.strip():
        return UNCHANGED
    wire: _Change = decode(_read_change, body)
    tags = None if wire.tags is None else tuple(wire.tags)
    if wire.tag is not None:
        check_tag(wire.tag)
    _check_labels(tags or ())
    _check_depth(wire.params or {}, body)
    return Change(params=wire.params, tag=wire.tag, tags=tags)


def _submission(wire: _Submit, body: bytes, default_tag: str) -> Submission:
    tag = default_tag if wire.tag is None else wire.tag
    tags = (tag,) if wire.tags is None else tuple(wire.tags)
    params = wire.params or {}
    check_flow_name(wire.flow_name)
    check_tag(tag)
    if wire.tags is not None:
        _check_labels(tags)
    _check_depth(params, body)
    return Submission(flow_name=wire.flow_name, tag=tag, tags=tags, params=params)


def check_flow_name(flow_name: str) -> None:
    if not flow_name:
        raise wrong(("body", "flow_name"), "must have at least one character", "too_short")
    if len(flow_name) > NAME_LENGTH_MAX:
        raise wrong(("body", "flow_name"), f"has at most {NAME_LENGTH_MAX} characters", "too_long")


def check_tag(tag: str) -> None:
    if not is_tag(tag):  # FLOW-33
        raise wrong(("body", "tag"), "must be letters, digits, '_' and '-', for example gpu-large", "pattern")


def _check_labels(tags: tuple[str, ...]) -> None:
    if len(tags) > TAGS_MAX or any(len(label) > NAME_LENGTH_MAX for label in tags):
        raise wrong(("body", "tags"), f"at most {TAGS_MAX} labels of {NAME_LENGTH_MAX} characters", "too_long")


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
