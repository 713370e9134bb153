"""What the gateway says of dead letters, and which are meant. Plain dicts, as in `results`."""

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
    #: `exec`: of a program; what follows is told of those alone.
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
    """A dead letter, and what there is of its run now."""

    run_status: NotRequired[RunStatus]
    redrivable: bool


class DlqPage(TypedDict):
    """Some letters, the newest first. `next_cursor`, given as `cursor`, brings the next ones; None: no more."""

    items: list[DlqMessage]
    next_cursor: str | None
    #: The same, as a number.
    next: int | None


class DlqGroup(TypedDict):
    """Letters of one reason and one flow."""

    reason: str
    flow_name: str | None
    count: int
    newest_at: float


class DlqCounts(TypedDict):
    """How many there are, the largest groups first."""

    total: int
    groups: list[DlqGroup]


class LettersDeletedBy(TypedDict, total=False):
    """Which letters to delete: a filter (all that is set must hold), or `all=True`.

    `up_to`: the id of the newest letter that is meant; those that came in later stay.
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
    """Which letters to redrive; `cursor` goes on where a request before this one has stopped."""

    cursor: str


class DlqMessageRedriven(TypedDict):
    """The new run is recorded and queued, and the letter is gone."""

    id: str
    run_id: str
    rerun_of: str
    status: Literal["PENDING"]


class DlqProblem(TypedDict):
    """Why one letter could not be redriven."""

    id: str
    err_id: str
    detail: str


class DlqMessagesRedriven(TypedDict):
    """What became of the request, in numbers."""

    matched: int
    redriven: int
    failed: int
    more: bool
    next_cursor: str | None
    problems: list[DlqProblem]


class DlqMessageDeleted(TypedDict):
    """The letter is gone."""

    id: str
    deleted: Literal[True]


class DlqMessagesDeleted(TypedDict):
    """What became of the request, in numbers."""

    matched: int
    deleted: int
    more: bool
