"""The shapes of the HTTP API, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pyoco_server.core.names import TAG_PATTERN
from pyoco_server.core.states import RunState, TaskState

__all__ = ["SCHEMAS", "array_of", "json_body", "json_response", "path_run_id", "query", "ref", "security"]


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


path_run_id: dict[str, Any] = {
    "name": "run_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "format": "uuid"},
    "description": "The id that the submission was answered with.",
}

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_FLAG = {"type": "boolean"}
_COUNT = {"type": "integer"}
_OBJECT = {"type": "object", "additionalProperties": True}
_TEXTS = array_of(_TEXT)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(properties: dict[str, Any], required: list[str], description: str) -> dict[str, Any]:
    return {"type": "object", "description": description, "properties": properties, "required": required}


_TASKS = {"type": "object", "additionalProperties": {"type": "string", "enum": list(TaskState)}}
_STATUS = {"type": "string", "enum": list(RunState)}

_SNAPSHOT: dict[str, Any] = {
    "run_id": {"type": "string", "format": "uuid"},
    "kind": _TEXT,
    "flow_name": _TEXT,
    "status": _STATUS,
    "tag": _TEXT,
    "tags": _TEXTS,
    "params": _OBJECT,
    "params_truncated": _FLAG,
    "tasks": _TASKS,
    "task_records": _OBJECT,
    "task_records_truncated": _FLAG,
    "attempt": _COUNT,
    "attempt_id": _TEXT,
    "worker_id": _TEXT,
    "instance_id": _TEXT,
    "submitted_at": _NUMBER,
    "start_time": _or_null(_NUMBER),
    "end_time": _or_null(_NUMBER),
    "heartbeat_at": _NUMBER,
    "updated_at": _NUMBER,
    "error": _or_null(_TEXT),
    "reason": _TEXT,
    "workflow_yaml_sha256": _TEXT,
    "workflow_yaml_bytes": _COUNT,
    "tenant_id": _TEXT,
    "api_key_id": _TEXT,
    "cancel_requested_at": _NUMBER,
    "cancel_reason": _TEXT,
    "worker_alive": _FLAG,
    "worker_heartbeat_at": _or_null(_NUMBER),
    "worker_tags": _or_null(_TEXTS),
    "worker_state": _or_null(_TEXT),
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
)

_LOC = array_of({"anyOf": [_TEXT, _COUNT]})
_PROBLEM = _object({"loc": _LOC, "msg": _TEXT, "type": _TEXT}, ["loc", "msg", "type"], "One thing that is wrong.")
_TAG = {"type": "string", "pattern": TAG_PATTERN, "maxLength": 128}

SCHEMAS: dict[str, Any] = {
    "RunSubmitRequest": _object(
        {
            "flow_name": {"type": "string", "minLength": 1, "maxLength": 512},
            "params": _or_null(_OBJECT),
            "tag": _or_null(_TAG),
            "tags": _or_null({"type": "array", "items": {"type": "string", "maxLength": 512}, "maxItems": 100}),
        },
        ["flow_name"],
        "A run of a flow that the workers know by name.",
    ),
    "RunSubmitYamlRequest": _object(
        {
            "workflow": {"type": "string", "format": "binary", "minLength": 1, "description": "The flow.yaml, UTF-8."},
            "flow_name": {"type": "string", "minLength": 1, "maxLength": 512},
            "tag": _TAG,
        },
        ["workflow", "flow_name"],
        "A run of an uploaded flow. Its params are the file's flow.defaults.",
    ),
    "RunAccepted": _object(
        {"run_id": {"type": "string", "format": "uuid"}, "status": {"type": "string", "enum": ["PENDING"]}},
        ["run_id", "status"],
        "The run is recorded and queued; both are durable.",
    ),
    "RunCancelRequest": _object({"reason": _or_null({"type": "string", "maxLength": 4096})}, [], "Why, if you like."),
    "RunSnapshot": _object(
        _SNAPSHOT,
        ["run_id", "flow_name", "status", "params", "tasks", "heartbeat_at", "updated_at"],
        "The latest state of a run. More fields may follow at any time. Instants are unix seconds.",
    ),
    "RunTasks": _object(
        {name: _SNAPSHOT[name] for name in ("run_id", "flow_name", "status", "tasks")}
        | {"task_records": _OBJECT, "task_records_truncated": _FLAG},
        ["run_id", "flow_name", "status", "tasks", "task_records", "task_records_truncated"],
        "The tasks of a run, with what is known of each.",
    ),
    "RunSummary": _object(
        {name: _SNAPSHOT[name] for name in _SUMMARY},
        ["run_id", "status", "updated_at"],
        "One line of a list.",
    ),
    "Problem": _PROBLEM,
    "Error": _object(
        {
            "detail": {"anyOf": [_TEXT, array_of(ref("Problem"))]},
            "err_id": _TEXT,
            "msg_id": _TEXT,
            "message": _TEXT,
            "message_ja": _TEXT,
            "errors": array_of(ref("Problem")),
        },
        ["detail", "err_id", "msg_id", "message", "message_ja"],
        "Every 4xx and 5xx answer.",
    ),
    "Health": _object({"status": _TEXT}, ["status"], "The gateway's own word."),
    "Ready": _object(
        {"status": _TEXT, "nats": _FLAG, "index": _FLAG}, ["status"], "Whether this gateway can take work."
    ),
}


def security(header: str) -> dict[str, Any]:
    """Both ways to send a key: the header of the settings, or a bearer token."""
    return {
        "apiKey": {"type": "apiKey", "in": "header", "name": header},
        "bearer": {"type": "http", "scheme": "bearer"},
    }
