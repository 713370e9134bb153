"""JSON schemas of `/v1`, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pyoco_server.core.priced.constants import PACK_TYPES, PROFILE_VERSION, TIMEBOX_SEC_DEFAULT, TIMEBOX_SEC_MAX
from pyoco_server.core.priced.reasons import HTTP_STATUS, RUN_FAILURES
from pyoco_server.core.priced.submission import CLIENT_VERSION_LENGTH_MAX
from pyoco_server.core.states.priced import Money, Status
from pyoco_server.doors.http.schemas import COUNT, NUMBER, OBJECT, TEXT, array_of, header, object_of, or_null, ref
from pyoco_server.doors.http.v1.submissions import KEY_LENGTH_MAX, KEY_LENGTH_MIN

__all__ = ["KEY_PARAMETER", "SCHEMAS", "TRACE_PARAMETER"]

_UUID = {"type": "string", "format": "uuid"}
_USD = {"type": "string", "pattern": r"^-?(0|[1-9][0-9]*)\.[0-9]{4}$", "description": "US dollars."}
_TRACE_ID = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
_INSTANT = {"type": "string", "format": "date-time"}
_FLAG = {"type": "boolean", "default": False}
_INLINE = {"type": "integer", "minimum": 0, "maximum": 1, "default": 0}

#: For the OpenAPI document.
KEY_PARAMETER: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "schema": {
        "type": "string",
        "pattern": "^[!-~]+$",
        "minLength": KEY_LENGTH_MIN,
        "maxLength": KEY_LENGTH_MAX,
    },
    "description": (
        "The same submission again under the same key is accepted once, paid once, and answered with the first "
        "receipt; a repeat says so in the header `Idempotency-Replayed: true`. Another submission under the same key "
        "is refused with 409."
    ),
}
TRACE_PARAMETER = header("X-Trace-Id", "Returned in the response. An invalid trace id is replaced.")


def _closed(properties: dict[str, Any], required: list[str], description: str) -> dict[str, Any]:
    return object_of(properties, required, description) | {"additionalProperties": False}


_PROBLEM: dict[str, Any] = {
    "type": TEXT,
    "title": TEXT,
    "status": COUNT,
    "detail": TEXT,
    "instance": TEXT,
    "reason_code": {"type": "string", "enum": sorted(HTTP_STATUS)},
    "trace_id": TEXT,
    "run_id": _UUID,
    "errors": array_of(ref("ProblemAt")),
    "err_id": TEXT,
    "price_usd": _USD | {"description": "With RESERVATION_BELOW_PRICE: the least max_cost_usd that is accepted."},
}
_PROBLEM_OPTIONAL = {"run_id", "errors", "err_id", "price_usd"}
_COST = {"reserved_usd": _USD, "used_usd": _USD, "minimum_fee_usd": _USD, "budget_remaining_usd": _USD}
_SIGNED: dict[str, Any] = {"presigned_url": TEXT, "sha256": TEXT, "expires_at": _INSTANT}
_FAILED: dict[str, Any] = {
    "reason_code": {"type": "string", "enum": sorted(RUN_FAILURES)},
    "problem": object_of(
        {"type": TEXT, "title": TEXT, "detail": TEXT, "reason_code": TEXT},
        ["type", "title", "detail", "reason_code"],
        "The reason as text.",
    ),
}

SCHEMAS: dict[str, Any] = {
    "PricedSubmission": _closed(
        {
            "pack_type": {
                "type": "string",
                "pattern": "^[a-z][a-z0-9_]{0,31}$",
                "description": f"A pack that is offered here. {', '.join(PACK_TYPES)} come with the server, unless its "
                "settings leave them out; others may be installed separately.",
            },
            "inputs": OBJECT | {"description": "The inputs of the pack."},
            "reservation": ref("PricedReservation"),
            "options": _closed({"inline": _INLINE}, [], "With `inline` 1 the response of GET contains a small result."),
            "artifacts": _closed({"include_markdown": _FLAG, "include_docx": _FLAG}, [], "Additional files to create."),
            "meta": _closed(
                {
                    "trace_id": _TRACE_ID,
                    "client_version": {"type": "string", "maxLength": CLIENT_VERSION_LENGTH_MAX},
                    "profile_version": {"type": "string", "enum": [PROFILE_VERSION]},
                },
                [],
                "About the submission.",
            ),
        },
        ["pack_type", "inputs", "reservation"],
        "A run of a pack, paid from the tenant's budget.",
    ),
    "PricedReservation": _closed(
        {
            "max_cost_usd": {
                "type": "string",
                "pattern": r"^(0|[1-9][0-9]{0,8})\.[0-9]{4}$",
                "description": "Reserved now; what is not used is released. At least 0.0050, and at least "
                "the price that is known from the inputs.",
            },
            "timebox_sec": {
                "type": "integer",
                "minimum": 1,
                "maximum": TIMEBOX_SEC_MAX,
                "default": TIMEBOX_SEC_DEFAULT,
            },
            "min_reliability_score": {
                "type": "number",
                "minimum": 0,
                "maximum": 1,
                "default": 0.8,
                "description": "At most four decimals.",
            },
        },
        ["max_cost_usd"],
        "The maximum cost and run time.",
    ),
    "PricedReceipt": object_of(
        {
            "run_id": _UUID,
            "status": {"type": "string", "enum": [Status.QUEUED.value]},
            "reservation": object_of(
                {"max_cost_usd": _USD, "timebox_sec": COUNT, "min_reliability_score": NUMBER},
                ["max_cost_usd", "timebox_sec", "min_reliability_score"],
                "As accepted.",
            ),
            "poll": object_of(
                {"href": TEXT, "recommended_interval_ms": COUNT},
                ["href", "recommended_interval_ms"],
                "Where the run can be read, and how often.",
            ),
            "meta": object_of(
                {"trace_id": TEXT, "profile_version": TEXT}, ["trace_id", "profile_version"], "Of the run."
            ),
        },
        ["run_id", "status", "reservation", "poll", "meta"],
        "The run is recorded, paid for and queued. The same for every repeat, whatever the state of the run.",
    ),
    "PricedRun": object_of(
        {
            "run_id": _UUID,
            "status": {"type": "string", "enum": [each.value for each in Status if each is not Status.EXPIRED]},
            "money_state": {"type": "string", "enum": list(Money)},
            "cost": object_of(_COST, list(_COST), "The same values as in the headers `X-DPP-*`."),
            "result": or_null({"anyOf": [ref("PricedResult"), ref("PricedFailure")]}),
            "meta": object_of(
                {"created_at": _INSTANT, "updated_at": _INSTANT, "trace_id": or_null(TEXT)},
                ["created_at", "updated_at", "trace_id"],
                "Of the run.",
            ),
        },
        ["run_id", "status", "money_state", "cost", "result", "meta"],
        "The latest state of a priced run.",
    ),
    "PricedResult": object_of(
        {
            **_SIGNED,
            "artifacts": array_of(ref("PricedArtifact")),
            "inline": object_of({"data": OBJECT}, ["data"], "The result itself, if it was requested and is small."),
            "inline_omitted": {"type": "string", "enum": ["TOO_LARGE", "UNAVAILABLE"]},
        },
        [*_SIGNED, "artifacts"],
        "Where the result can be fetched, without a key, until it expires.",
    ),
    "PricedArtifact": object_of(
        {"name": TEXT, "bytes": COUNT, "content_type": TEXT, **_SIGNED},
        ["name", "bytes", "content_type", *_SIGNED],
        "A file that belongs to the result.",
    ),
    "PricedFailure": object_of(_FAILED, list(_FAILED), "Why the run failed. There is no result."),
    "ProblemAt": object_of(
        {"pointer": TEXT, "message": TEXT},
        ["pointer", "message"],
        "One problem. The pointer points into the body; an empty pointer means the request itself.",
    ),
    "ProblemDetails": object_of(
        _PROBLEM,
        [name for name in _PROBLEM if name not in _PROBLEM_OPTIONAL],
        "Every 4xx and 5xx answer under `/v1` (RFC 9457).",
    ),
}
