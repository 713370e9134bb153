"""All requests about programs and their jobs, as values; the counterpart of `calls.py`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyoco_server.client.calls import Call, form_fields, json_call, only_given, path_to, with_length
from pyoco_server.client.job_form import JobFile, JobForm
from pyoco_server.client.job_results import (
    Artifact,
    DlqMessageRequeued,
    ExecAcl,
    ExecAclDeleted,
    ExecClient,
    ExecEvents,
    ExecState,
    JobAccepted,
)

__all__ = [
    "delete_acl",
    "exec_events",
    "exec_state",
    "fetch_artifact",
    "get_acl",
    "get_artifacts",
    "get_client_cap",
    "job_form",
    "program_filters",
    "requeue_letter",
    "set_acl",
    "set_client_cap",
    "submit_job",
]


def job_form(exec_name: str, args: Sequence[str], files: Mapping[str, JobFile], more: Mapping[str, Any]) -> JobForm:
    """Return the form of a job. Without an id one is generated, so that a retry is not a second job."""
    given = {"job_id": str(uuid.uuid4())} | dict(more)
    return JobForm({"exec_name": exec_name} | form_fields(given), args, files)


def submit_job(form: JobForm, key: str | None) -> Call[JobAccepted]:
    """Idempotent: the form contains the job id."""
    headers = {"Content-Type": form.content_type} | ({} if key is None else {"Idempotency-Key": key})
    return with_length(Call(method="POST", path="/jobs", headers=headers), form.length)


def program_filters(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the program filters of run lists under their wire names."""
    return {"exec" if name == "exec_name" else name: value for name, value in asked.items()}


def get_artifacts(run_id: str) -> Call[list[Artifact]]:
    return Call(method="GET", path=path_to("runs", run_id, "artifacts"), query={"list": 1})


def fetch_artifact(run_id: str, name: str) -> Call[None]:
    """Requests the stored bytes: a compressed response would differ in length."""
    return Call(method="GET", path=path_to("runs", run_id, "artifacts", name), headers={"Accept-Encoding": "identity"})


def get_client_cap(client_id: str, group: str | None) -> Call[ExecClient]:
    return Call(method="GET", path=path_to("exec", "clients", client_id), query=only_given({"group": group}))


def set_client_cap(client_id: str, cap: int, group: str | None) -> Call[ExecClient]:
    call: Call[ExecClient] = json_call("PUT", path_to("exec", "clients", client_id), {"cap": cap})
    return replace(call, query=only_given({"group": group}))


def get_acl(kind: str, of: str) -> Call[ExecAcl]:
    return Call(method="GET", path=path_to("exec", "acl", kind, of))


def set_acl(kind: str, of: str, record: Mapping[str, Any]) -> Call[ExecAcl]:
    return json_call("PUT", path_to("exec", "acl", kind, of), only_given(record))


def delete_acl(kind: str, of: str) -> Call[ExecAclDeleted]:
    deleted: Any = {"kind": kind, "id": of, "deleted": True}
    return Call(method="DELETE", path=path_to("exec", "acl", kind, of), if_gone=deleted)


def exec_state(group: str | None) -> Call[ExecState]:
    return Call(method="GET", path="/exec/state", query=only_given({"group": group}))


def exec_events(filters: Mapping[str, Any]) -> Call[ExecEvents]:
    return Call(method="GET", path="/exec/events", query=only_given(filters))


def requeue_letter(letter_id: str) -> Call[DlqMessageRequeued]:
    """Idempotent: a retry returns the same new job."""
    return Call(method="POST", path=path_to("dlq", letter_id, "requeue"))
