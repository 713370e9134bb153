"""Response types and filters for dead letters. Plain dicts, as in `results`."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from pyoco_server.client.run_results import RunStatus

__all__ = [
    "DlqCounts",
    "DlqGroup",
    "DlqMessage",
    "DlqMessageDeleted",
    "DlqMessageDetail",
    "DlqMessageRedriven",
    "DlqMessagesDeleted",
    "DlqMessagesRedriven",
    "DlqPage",
    "DlqProblem",
    "LettersDeletedBy",
    "LettersRedrivenBy",
]


class DlqMessage(TypedDict):
    """A dead letter: a job set aside, and why."""

    id: str
    timestamp: float
    reason: str
    error: str | None
    tag: str
    run_id: NotRequired[str]
    flow_name: NotRequired[str]
    tags: NotRequired[list[str]]
    worker_id: NotRequired[str]
    num_delivered: NotRequired[int]
    subject: NotRequired[str]
    tenant_id: NotRequired[str]
    api_key_id: NotRequired[str]
    #: `exec`: of a program; only these have the following fields.
    kind: NotRequired[Literal["exec"]]
    job_id: NotRequired[str]
    group: NotRequired[str]
    exec_name: NotRequired[str]
    client_id: NotRequired[str]
    attempt: NotRequired[int]
    lost: NotRequired[int]
    exit_code: NotRequired[int]
    error_code: NotRequired[str]


class DlqMessageDetail(DlqMessage):
    """A dead letter and the current state of its run."""

    run_status: NotRequired[RunStatus]
    redrivable: bool


class DlqPage(TypedDict):
    """One page of dead letters, newest first. For the next page pass `next_cursor` as `cursor`; None: last page."""

    items: list[DlqMessage]
    next_cursor: str | None
    #: `next_cursor` as a number.
    next: int | None


class DlqGroup(TypedDict):
    """The dead letters with the same reason and flow."""

    reason: str
    flow_name: str | None
    count: int
    newest_at: float


class DlqCounts(TypedDict):
    """The number of dead letters, largest groups first."""

    total: int
    groups: list[DlqGroup]


class LettersDeletedBy(TypedDict, total=False):
    """Which dead letters to delete: a filter (all conditions must match), or `all=True`.

    `up_to`: the id of the newest dead letter to include; later ones are kept.
    """

    reason: str
    flow: str
    tag: str
    run_id: str
    exec: str
    client_id: str
    group: str
    limit: int
    all: bool
    up_to: str


class LettersRedrivenBy(LettersDeletedBy, total=False):
    """Which dead letters to redrive. `cursor` continues where an earlier request stopped."""

    cursor: str


class DlqMessageRedriven(TypedDict):
    """The new run is recorded and queued, and the dead letter is deleted."""

    id: str
    run_id: str
    rerun_of: str
    status: Literal["PENDING"]


class DlqProblem(TypedDict):
    """Why a dead letter could not be redriven."""

    id: str
    err_id: str
    detail: str


class DlqMessagesRedriven(TypedDict):
    """The outcome of the request, as counts."""

    matched: int
    redriven: int
    failed: int
    more: bool
    next_cursor: str | None
    problems: list[DlqProblem]


class DlqMessageDeleted(TypedDict):
    """The dead letter is deleted."""

    id: str
    deleted: Literal[True]


class DlqMessagesDeleted(TypedDict):
    """The outcome of the request, as counts."""

    matched: int
    deleted: int
    more: bool
