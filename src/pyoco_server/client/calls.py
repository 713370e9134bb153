"""All requests to a gateway, as values: no socket, no clock. Both clients send only these."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pyoco_server.client.dead_letter_results import (
    DlqCounts,
    DlqMessageDeleted,
    DlqMessageDetail,
    DlqMessageRedriven,
    DlqMessagesDeleted,
    DlqMessagesRedriven,
    DlqPage,
)
from pyoco_server.client.flow_results import FlowList, FlowShown
from pyoco_server.client.forms import Form, frame
from pyoco_server.client.log_results import LogLines
from pyoco_server.client.results import Attention, Health, Queues, Ready, RecentMetrics, WorkerPatched, WorkerRecord
from pyoco_server.client.run_results import (
    RunAccepted,
    RunBatchAnswer,
    RunListResponse,
    RunRepeated,
    RunsCancelled,
    RunSnapshot,
    RunSummary,
    RunTasks,
)
from pyoco_server.client.wheel_results import WheelArtifact, WheelDeleted, WheelHistoryEvent
from pyoco_server.core.retries.policy import to_document
from pyoco_server.core.retries.reading import read_policy_text

__all__ = [
    "Call",
    "Reads",
    "Repeat",
    "cancel_run",
    "cancel_runs",
    "count_letters",
    "delete_letter",
    "delete_letters",
    "delete_wheel",
    "fetch_run_result",
    "fetch_task_output",
    "fetch_wheel",
    "follow_run_logs",
    "form_fields",
    "get_attention",
    "get_flow",
    "get_letter",
    "get_metrics",
    "get_recent_metrics",
    "get_run",
    "get_run_logs",
    "get_tasks",
    "get_worker",
    "health",
    "json_call",
    "key_header",
    "key_headers",
    "list_flows",
    "list_letters",
    "list_queues",
    "list_runs",
    "list_runs_vnext",
    "list_wheel_history",
    "list_wheels",
    "list_workers",
    "only_given",
    "patch_worker",
    "path_to",
    "policy_of_text",
    "ready",
    "redrive_letter",
    "redrive_letters",
    "rerun_run",
    "run_filters",
    "start_run",
    "submit_batch",
    "submit_run",
    "submit_run_yaml",
    "upload_wheel",
    "watch_run",
    "wheel_form",
    "with_length",
    "words",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Repeat(Enum):
    """When a failed call may be retried."""

    #: Idempotent: it reads, sets a value, or carries an idempotency key.
    SAFE = "safe"
    #: Not idempotent: retry only if the request was certainly not sent.
    UNSENT = "unsent"
    #: Never retry: the failure itself is the result.
    NEVER = "never"


class Reads(Enum):
    """How the response body is decoded."""

    JSON = "json"
    TEXT = "text"
    #: One JSON document per line, and whether more lines follow.
    LINES = "lines"
    #: JSON, extended by the reserved amount and the idempotency key from the headers.
    RECEIPT = "receipt"


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T_co]):
    """One request: what is sent, how the response is decoded, and whether it may be retried."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    reads: Reads = Reads.JSON
    repeat: Repeat = Repeat.SAFE
    #: The result if a retry gets a 404: an earlier attempt succeeded and its response was lost.
    if_gone: T_co | None = None


def key_headers(api_key: str | None, header: str) -> dict[str, str]:
    """Return the headers of every call.

    Raises ValueError for a key that is not a valid header value; the message does not contain the key.
    """
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable()) or api_key != api_key.strip():
        raise ValueError("the API key holds white space or characters that no HTTP header can carry")
    return {header: api_key}


def words(given: Sequence[str] | None) -> list[str] | None:
    """Return the words as a list. Raises TypeError for a single string, whose letters would become the words."""
    if isinstance(given, str):
        raise TypeError(f"a list of words is expected, not one word: [{given!r}]")
    return None if given is None else list(given)


def health() -> Call[Health]:
    return Call(method="GET", path="/health", repeat=Repeat.NEVER)


def ready() -> Call[Ready]:
    return Call(method="GET", path="/ready", repeat=Repeat.NEVER)


def get_metrics() -> Call[str]:
    return Call(method="GET", path="/metrics", reads=Reads.TEXT)


def get_recent_metrics(after: float | None) -> Call[RecentMetrics]:
    return Call(method="GET", path="/metrics/recent", query=only_given({"after": after}))


def list_queues() -> Call[Queues]:
    return Call(method="GET", path="/queues")


def get_attention() -> Call[Attention]:
    return Call(method="GET", path="/attention")


# Runs


def submit_run(submission: Mapping[str, Any], key: str | None) -> Call[RunAccepted]:
    return json_call("POST", "/runs", _with_retry(submission), key_header(key))


def submit_run_yaml(text: str, fields: Mapping[str, Any], key: str | None) -> Call[RunAccepted]:
    named = form_fields(fields)
    form = frame(named, "workflow", "flow.yaml", "application/yaml")
    headers = {"Content-Type": form.content_type, **key_header(key)}
    return Call(method="POST", path="/runs/yaml", headers=headers, content=form.head + text.encode() + form.tail)


def submit_batch(runs: Sequence[Mapping[str, Any]], key: str | None) -> Call[RunBatchAnswer]:
    return json_call("POST", "/runs/batch", {"runs": [_with_retry(run) for run in runs]}, key_header(key))


def rerun_run(run_id: str, change: Mapping[str, Any], key: str | None) -> Call[RunRepeated]:
    return json_call("POST", path_to("runs", run_id, "rerun"), _with_retry(change), key_header(key))


def form_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the given values as parts of a form, a retry policy as JSON text."""
    given = _with_retry(fields)
    return {name: json.dumps(value) if name == "retry" else str(value) for name, value in given.items()}


def _with_retry(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values; `retry=None` is one, and the short text becomes a policy. Raises ValueError."""
    given = only_given(asked)
    if "retry" in asked:
        retry = asked["retry"]
        given["retry"] = policy_of_text(retry) if isinstance(retry, str) else retry
    return given


def policy_of_text(text: str) -> dict[str, Any]:
    """Return the policy that the short text stands for. Raises ValueError."""
    problems: list[str] = []
    policy = read_policy_text(text, (), lambda _, message, __: problems.append(message))
    if policy is None:
        raise ValueError(f"retry {problems[0]}")
    return to_document(policy)


def start_run(run_id: str) -> Call[RunSnapshot]:
    """Not repeated after an ambiguous failure: the second answer would be that the run does not wait."""
    return Call(method="POST", path=path_to("runs", run_id, "start"), repeat=Repeat.NEVER)


def get_run(run_id: str, include: Sequence[str] | None) -> Call[RunSnapshot]:
    return Call(method="GET", path=path_to("runs", run_id), query=only_given({"include": words(include) or None}))


#: Without compression, which would change the digest of what is sent.
_AS_STORED = {"Accept-Encoding": "identity"}


def fetch_run_result(run_id: str) -> Call[None]:
    return Call(method="GET", path=path_to("runs", run_id, "result"), headers=_AS_STORED)


def fetch_task_output(run_id: str, task: str) -> Call[None]:
    return Call(method="GET", path=path_to("runs", run_id, "outputs", task), headers=_AS_STORED)


def get_tasks(run_id: str) -> Call[RunTasks]:
    return Call(method="GET", path=path_to("runs", run_id, "tasks"))


def run_filters(  # noqa: PLR0913, PLR0917  (one for each filter)
    status: str | None,
    flow: str | None,
    tag: str | None,
    include: Sequence[str] | None,
    workflow_yaml_sha256: str | None,
    kind: str | None,
    run_id: str | None,
    search: str | None,
) -> dict[str, Any]:
    """Return the filters that all lists of runs support."""
    return {
        "status": status,
        "flow": flow,
        "tag": tag,
        "include": words(include) or None,
        "workflow_yaml_sha256": workflow_yaml_sha256,
        "kind": kind,
        "run_id": run_id,
        "q": search,
    }


def list_runs(filters: Mapping[str, Any]) -> Call[list[RunSummary]]:
    return Call(method="GET", path="/runs", query=only_given(filters))


def list_runs_vnext(filters: Mapping[str, Any]) -> Call[RunListResponse]:
    return Call(method="GET", path="/runs", query={**only_given(filters), "envelope": True})


def cancel_run(run_id: str, reason: str | None, grace_sec: float | None) -> Call[RunSnapshot]:
    return json_call("POST", path_to("runs", run_id, "cancel"), only_given({"reason": reason, "grace_sec": grace_sec}))


def cancel_runs(chosen: Mapping[str, Any]) -> Call[RunsCancelled]:
    """Not idempotent: a retry could affect more than `limit` items."""
    return json_call("POST", "/runs/cancel", only_given(chosen), repeat=Repeat.UNSENT)


def watch_run(run_id: str, query: Mapping[str, Any], last_event_id: str | None) -> Call[None]:
    path = path_to("runs", run_id, "watch")
    return Call(method="GET", path=path, query=only_given(query), headers=_stream_headers(last_event_id))


def get_run_logs(run_id: str, query: Mapping[str, Any]) -> Call[LogLines]:
    headers = {"Accept": "application/x-ndjson"}
    path = path_to("runs", run_id, "logs")
    return Call(method="GET", path=path, query=only_given(query), headers=headers, reads=Reads.LINES)


def follow_run_logs(run_id: str, query: Mapping[str, Any], last_event_id: str | None) -> Call[None]:
    path = path_to("runs", run_id, "logs", "stream")
    return Call(method="GET", path=path, query=only_given(query), headers=_stream_headers(last_event_id))


def _stream_headers(last_event_id: str | None) -> dict[str, str]:
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    return headers if last_event_id is None else {**headers, "Last-Event-ID": last_event_id}


# Workers


def list_workers(filters: Mapping[str, Any]) -> Call[list[WorkerRecord]]:
    return Call(method="GET", path="/workers", query=only_given(filters))


def get_worker(worker_id: str) -> Call[WorkerRecord]:
    return Call(method="GET", path=path_to("workers", worker_id))


def patch_worker(worker_id: str, hidden: bool) -> Call[WorkerPatched]:
    return json_call("PATCH", path_to("workers", worker_id), {"hidden": hidden})


# Flows


def list_flows(filters: Mapping[str, Any]) -> Call[FlowList]:
    return Call(method="GET", path="/flows", query=only_given(filters))


def get_flow(name: str) -> Call[FlowShown]:
    return Call(method="GET", path=path_to("flows", name))


# Dead letters


def list_letters(filters: Mapping[str, Any]) -> Call[DlqPage]:
    return Call(method="GET", path="/dlq", query=only_given(filters))


def count_letters() -> Call[DlqCounts]:
    return Call(method="GET", path="/dlq/counts")


def get_letter(letter_id: str) -> Call[DlqMessageDetail]:
    return Call(method="GET", path=path_to("dlq", letter_id))


def redrive_letter(letter_id: str, change: Mapping[str, Any]) -> Call[DlqMessageRedriven]:
    """A retry cannot create a second run, but it finds no dead letter and cannot return the new run."""
    return json_call("POST", path_to("dlq", letter_id, "redrive"), only_given(change), repeat=Repeat.UNSENT)


def redrive_letters(chosen: Mapping[str, Any]) -> Call[DlqMessagesRedriven]:
    return json_call("POST", "/dlq/redrive", only_given(chosen), repeat=Repeat.UNSENT)


def delete_letter(letter_id: str) -> Call[DlqMessageDeleted]:
    return Call(method="DELETE", path=path_to("dlq", letter_id), if_gone={"id": letter_id, "deleted": True})


def delete_letters(chosen: Mapping[str, Any]) -> Call[DlqMessagesDeleted]:
    """Not idempotent: a retry could affect more than `limit` items."""
    return Call(method="DELETE", path="/dlq", query=only_given(chosen), repeat=Repeat.UNSENT)


# Wheels


def list_wheels() -> Call[list[WheelArtifact]]:
    return Call(method="GET", path="/wheels")


def list_wheel_history(filters: Mapping[str, Any]) -> Call[list[WheelHistoryEvent]]:
    return Call(method="GET", path="/wheels/history", query=only_given(filters))


def upload_wheel(form: Form, length: int | None) -> Call[WheelArtifact]:
    """Return the call without its body, which is the form around the file."""
    return with_length(Call(method="POST", path="/wheels", headers={"Content-Type": form.content_type}), length)


def with_length(call: Call[T], length: int | None) -> Call[T]:
    """Return the call for a streamed body. Without a length it is sent with chunked encoding."""
    framing = {"Transfer-Encoding": "chunked"} if length is None else {"Content-Length": str(length)}
    return replace(call, headers={**call.headers, **framing})


def wheel_form(file_name: str, replace: bool, tags: Sequence[str] | None) -> Form:
    fields = {"replace": "true" if replace else "false"}
    if tags is not None:
        fields["tags"] = ",".join(words(tags) or [])
    return frame(fields, "wheel", file_name, "application/octet-stream")


def fetch_wheel(wheel_name: str) -> Call[None]:
    """Requests the stored bytes: a compressed response would differ in length."""
    headers = {"Accept": "application/octet-stream", "Accept-Encoding": "identity"}
    return Call(method="GET", path=path_to("wheels", wheel_name), headers=headers)


def delete_wheel(wheel_name: str) -> Call[WheelDeleted]:
    return Call(method="DELETE", path=path_to("wheels", wheel_name), if_gone={"name": wheel_name, "deleted": True})


# Helpers


def json_call(
    method: str, path: str, document: Any, headers: Mapping[str, str] | None = None, repeat: Repeat = Repeat.SAFE
) -> Call[Any]:
    """Return a call with a JSON body. Raises TypeError or ValueError for values that JSON cannot represent."""
    content = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    return Call(method=method, path=path, headers=sent, content=content, repeat=repeat)


def key_header(given: str | None) -> dict[str, str]:
    """Return the idempotency header. Without a key one is generated, so that a retry is not a second submission."""
    return {"Idempotency-Key": uuid.uuid4().hex if given is None else given}


def path_to(*parts: str) -> str:
    """Return the path of these segments. Each is quoted, dots included, so that none can lead to another path."""
    return "".join("/" + quote(part, safe="").replace(".", "%2E") for part in parts)


def only_given(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the values that are None, so that the server applies its defaults."""
    return {name: value for name, value in asked.items() if value is not None}
