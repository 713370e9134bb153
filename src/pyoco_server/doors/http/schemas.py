"""JSON schemas of the HTTP API, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pyoco_server.core.change import DoerKind, What
from pyoco_server.core.programs.faults import FACTS, Code
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.run import FAILED_TRY, GATEWAY, HANDED_BACK, KEEPER, LOST, OPERATOR, TASK_TIMEOUT
from pyoco_server.core.states import UNKNOWN, RunState, TaskState
from pyoco_server.core.states.priced import Money, Status
from pyoco_server.core.waiting import WaitReason

__all__ = [
    "COUNT",
    "FLAG",
    "IF_NONE_MATCH",
    "LISTED_STATUS",
    "NUMBER",
    "OBJECT",
    "SCHEMAS",
    "STATUS",
    "TEXT",
    "TEXTS",
    "array_of",
    "header",
    "json_body",
    "json_response",
    "object_of",
    "or_null",
    "path_run_id",
    "query",
    "ref",
    "security",
]


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def array_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def json_response(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def json_body(schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": TEXT, "description": description}


path_run_id: dict[str, Any] = {
    "name": "run_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "format": "uuid"},
    "description": "Run id.",
}

TEXT = {"type": "string"}
NUMBER = {"type": "number"}
FLAG = {"type": "boolean"}
COUNT = {"type": "integer"}
OBJECT = {"type": "object", "additionalProperties": True}

IF_NONE_MATCH = header("If-None-Match", "The `ETag` of the copy you have.")
TEXTS = array_of(TEXT)


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def object_of(properties: dict[str, Any], required: list[str], description: str) -> dict[str, Any]:
    return {"type": "object", "description": description, "properties": properties, "required": required}


_TASKS = {"type": "object", "additionalProperties": {"type": "string", "enum": list(TaskState)}}
STATUS = {"type": "string", "enum": list(RunState)}
#: In lists: UNKNOWN marks a run whose record cannot be read (SAFE-16).
LISTED_STATUS = {"type": "string", "enum": [*RunState, UNKNOWN]}

_SNAPSHOT: dict[str, Any] = {
    "run_id": {"type": "string", "format": "uuid"},
    "kind": TEXT,
    "flow_name": TEXT,
    "status": STATUS,
    "tag": TEXT,
    "tags": TEXTS,
    "params": OBJECT,
    "params_truncated": FLAG,
    "tasks": _TASKS,
    "task_records": OBJECT,
    "task_records_truncated": FLAG,
    "attempt": COUNT,
    "attempt_id": TEXT,
    "worker_id": TEXT,
    "instance_id": TEXT,
    "submitted_at": NUMBER,
    "start_time": or_null(NUMBER),
    "end_time": or_null(NUMBER),
    "heartbeat_at": NUMBER,
    "updated_at": NUMBER,
    "error": or_null(TEXT),
    "reason": TEXT,
    "workflow_yaml_sha256": TEXT,
    "workflow_yaml_bytes": COUNT,
    "tenant_id": TEXT,
    "api_key_id": TEXT,
    "cancel_requested_at": NUMBER,
    "cancel_reason": TEXT,
    "cancel_requested_by": TEXT,
    "cancel_deadline_at": NUMBER | {"description": "The work is killed then, unless it stops before."},
    "ended_by": {"type": "string", "enum": [KEEPER, GATEWAY, OPERATOR]},
    "rerun_of": {"type": "string", "format": "uuid"},
    "graph": {"type": "object", "additionalProperties": TEXTS},
    "earlier_attempts": array_of(ref("RunAttempt")),
    "last_change": ref("RunLastChange"),
    "worker_alive": FLAG,
    "worker_heartbeat_at": or_null(NUMBER),
    "worker_tags": or_null(TEXTS),
    "worker_state": or_null(TEXT),
    "waiting": ref("RunWaiting"),
    "result": ref("RunResult"),
    "not_run": TEXTS,
    "letter_id": TEXT | {"description": "The dead letter of the failed run, while it is kept."},
    "rerun_ids": array_of(TEXT) | {"description": "The newest 20 runs that repeat the failed run."},
    "not_before": NUMBER | {"description": "The run must not start, or try again, before this instant."},
    "schedule": ref("RunSchedule"),
    "retry": or_null(OBJECT) | {"description": "The retry policy, with all members, durations in seconds."},
    "try": COUNT | {"description": "With a retry policy: the current try, from 1, or the last one."},
    "max_tries": COUNT,
    "tries": array_of(ref("RunTry")),
    "timeout": NUMBER | {"description": "Seconds for each try, if the submission or the flow limits it."},
}
#: Only for runs of kind `pack`.
_PACK: dict[str, Any] = {
    "pack_type": TEXT,
    "priced_status": {"type": "string", "enum": [status for status in Status if status is not Status.EXPIRED]},
    "money_state": {"type": "string", "enum": list(Money)},
    "reason_code": or_null(TEXT),
    "cost": ref("RunCost"),
    "redacted": FLAG,
}
_FULL_PACK: dict[str, Any] = _PACK | {
    "finalizing": FLAG,
    "tokens_consumed": COUNT,
    "timebox_sec": COUNT,
    "min_reliability_score": NUMBER,
    "trace_id": or_null(TEXT),
    "ledger_version": COUNT,
}
#: For runs of kind `exec`. List entries contain these fields as well.
_PROGRAM: dict[str, Any] = {
    "job_id": {"type": "string", "format": "uuid"},
    "client_id": TEXT,
    "group": TEXT,
    "exec_name": TEXT,
    "attempt": COUNT,
    "lost": COUNT,
    "exit_code": COUNT,
    "error_code": {"type": "string", "enum": list(ErrorCode)},
    "retry_of": {"type": "string", "format": "uuid"},
}
_FULL_PROGRAM: dict[str, Any] = _PROGRAM | {
    "fingerprint": TEXT,
    "max_attempts": COUNT,
    "stdout_tail": TEXT,
    "stderr_tail": TEXT,
    "stdout_truncated": FLAG,
    "stderr_truncated": FLAG,
    "artifacts": array_of(ref("RunArtifact")),
    "run_seconds": NUMBER,
    "dlq_due": FLAG,
    "dlq_done": FLAG,
}
_SUMMARY = (
    "run_id",
    "kind",
    "status",
    "flow_name",
    "tag",
    "tags",
    "submitted_at",
    "start_time",
    "end_time",
    "updated_at",
    "heartbeat_at",
    "worker_id",
    "error",
    "not_before",
    "schedule",
    "try",
    "max_tries",
)

_COSTS = ("reserved", "used", "minimum_fee")

_LOC = array_of({"anyOf": [TEXT, COUNT]})
_PROBLEM = object_of(
    {
        "loc": _LOC,
        "msg": TEXT,
        "type": TEXT,
        "nearest": or_null(TEXT) | {"description": "With type `unknown_member`: the most similar known name."},
    },
    ["loc", "msg", "type"],
    "One problem.",
)
SCHEMAS: dict[str, Any] = {
    "RunSnapshot": object_of(
        _SNAPSHOT | _FULL_PROGRAM | _FULL_PACK,
        ["run_id", "flow_name", "status", "params", "tasks", "heartbeat_at", "updated_at"],
        "The latest state of a run. Fields may be added at any time. Times are unix seconds. The fields from `job_id` "
        "on are for programs, the last ten for priced runs, whose authoritative record is the ledger.",
    ),
    "RunArtifact": object_of(
        {"name": TEXT, "object": TEXT, "size": COUNT, "sha256": TEXT},
        ["name", "object", "size", "sha256"],
        "A file that a program left behind; download it with `GET /runs/{run_id}/artifacts/{name}`.",
    ),
    "RunCost": object_of(
        {f"{name}_usd_micros": COUNT for name in _COSTS} | {f"{name}_usd": TEXT for name in _COSTS},
        [],
        "Reservation, charge and minimum fee of a priced run, in millionths of a dollar and as text.",
    ),
    "RunWaiting": object_of(
        {
            "reason": {"type": "string", "enum": list(WaitReason)},
            "message": TEXT,
            "message_ja": TEXT,
            "resource": TEXT | {"description": "With ERR-PYOCO-0050: the stream that is missing in NATS."},
            "key": TEXT | {"description": "With ERR-PYOCO-0075: the key of the record that cannot be read."},
            "position": or_null({"type": "integer", "minimum": 1}),
            "position_capped": FLAG,
            "workers_alive": COUNT,
            "slots": COUNT,
            "slots_busy": COUNT,
            "oldest_ahead": or_null(ref("RunAhead")),
            "until": NUMBER | {"description": "With `scheduled` and `retry`: when the run is due."},
        },
        [
            "reason",
            "message",
            "message_ja",
            "position",
            "position_capped",
            "workers_alive",
            "slots",
            "slots_busy",
            "oldest_ahead",
        ],
        "Why a run that no worker has taken is not executed yet, and its place in the queue of its tag, estimated.",
    ),
    "RunSchedule": object_of(
        {
            "id": {"type": "string", "format": "uuid"},
            "name": TEXT,
            "tick": NUMBER,
            "source": {"type": "string", "enum": ["tick", "catch_up", "trigger", "backfill"]},
        },
        ["id", "name", "tick", "source"],
        "The schedule that submitted the run, and for which tick.",
    ),
    "RunAhead": object_of(
        {"run_id": {"type": "string", "format": "uuid"}, "submitted_at": NUMBER, "age_seconds": NUMBER},
        ["age_seconds"],
        "The run ahead of this one that has waited longest. For another tenant's run only the age is shown.",
    ),
    "RunAttempt": object_of(
        {
            "attempt": COUNT,
            "worker_id": or_null(TEXT),
            "started_at": or_null(NUMBER),
            "ended_at": NUMBER,
            "why": {"type": "string", "enum": [HANDED_BACK, LOST, FAILED_TRY, TASK_TIMEOUT]},
        },
        ["attempt", "worker_id", "started_at", "ended_at", "why"],
        "An earlier attempt: its worker released the run or was lost, or a try failed and another one is allowed. If "
        "lost, `ended_at` is the last heartbeat.",
    ),
    "RunTry": object_of(
        {
            "try": COUNT,
            "attempts": array_of(COUNT),
            "worker_id": or_null(TEXT),
            "started_at": or_null(NUMBER),
            "ended_at": NUMBER,
            "reason": TEXT,
            "error": or_null(TEXT),
            "kind": TEXT | {"description": "What the policy decided on, such as `exception:ValueError` or `exit:3`."},
        },
        ["try", "attempts", "worker_id", "started_at", "ended_at", "reason", "error", "kind"],
        "A failed try of a run, and the newest 20 of its attempts.",
    ),
    "RunLastChange": object_of(
        {
            "what": {"type": "string", "enum": list(What)},
            "at": NUMBER,
            "by": object_of(
                {"kind": {"type": "string", "enum": list(DoerKind)}, "id": or_null(TEXT)},
                ["kind", "id"],
                "Without authentication every client is a `caller`.",
            ),
        },
        ["what", "at", "by"],
        "The last event of the run, its time, and who caused it.",
    ),
    "RunTasks": object_of(
        {name: _SNAPSHOT[name] for name in ("run_id", "flow_name", "status", "tasks")}
        | {"task_records": OBJECT, "task_records_truncated": FLAG},
        ["run_id", "flow_name", "status", "tasks", "task_records", "task_records_truncated"],
        "The tasks of a run and their records.",
    ),
    "RunSummary": object_of(
        {name: _SNAPSHOT[name] for name in _SUMMARY}
        | {"status": LISTED_STATUS, "params_preview": TEXT}
        | _PROGRAM
        | _PACK,
        ["run_id", "status", "updated_at"],
        "One list entry. The fields from `job_id` on are for programs, the last five for priced runs.",
    ),
    "Problem": _PROBLEM,
    "Error": object_of(
        {
            "detail": {"anyOf": [TEXT, array_of(ref("Problem"))]},
            "err_id": TEXT,
            "msg_id": TEXT,
            "message": TEXT,
            "message_ja": TEXT,
            "resource": TEXT | {"description": "With ERR-PYOCO-0050: the stream that is missing in NATS."},
            "key": TEXT | {"description": "With ERR-PYOCO-0075: the key of the record that cannot be read."},
            "errors": array_of(ref("Problem")),
            "code": {"type": "string", "enum": [code for code in Code if FACTS[code].http is not None]},
            "job_id": {"type": "string", "format": "uuid"},
            "run_id": {"type": "string", "format": "uuid"},
        },
        ["detail", "err_id", "msg_id", "message", "message_ja"],
        "Every 4xx and 5xx response. The last three fields are set if a job is refused or its outcome is unknown.",
    ),
}


def security(header: str) -> dict[str, Any]:
    """Both ways to send a key: the configured header, or a bearer token."""
    return {
        "apiKey": {"type": "apiKey", "in": "header", "name": header},
        "bearer": {"type": "http", "scheme": "bearer"},
    }
