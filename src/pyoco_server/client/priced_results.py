"""What the gateway answers with about priced runs and budgets. Plain dicts; the types are for the editor.

Amounts are texts with four decimals, `0.2500`, or whole micros of a US dollar; never floats. Under `/v1` instants are
texts, `2026-01-31T12:00:00Z`; elsewhere they are unix seconds. More fields may come at any time, and pass through.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

__all__ = [
    "Budget",
    "BudgetJournal",
    "BudgetJournalLine",
    "BudgetList",
    "BudgetSpend",
    "BudgetSpendStep",
    "PackArtifact",
    "PackCost",
    "PackCosts",
    "PackEnvelope",
    "PackFailure",
    "PackFile",
    "PackImage",
    "PackInline",
    "PackInput",
    "PackList",
    "PackOffer",
    "PackPoll",
    "PackProblemBody",
    "PackProblemPlace",
    "PackReceipt",
    "PackReceiptMeta",
    "PackReservation",
    "PackResult",
    "PackRun",
    "PackRunMeta",
    "PricedChecks",
    "PricedReady",
    "RunCost",
    "RunPackFields",
]

PackStatus = Literal["QUEUED", "PROCESSING", "COMPLETED", "FAILED"]
MoneyState = Literal["NONE", "RESERVED", "SETTLED", "REFUNDED", "DISPUTED"]
Check = Literal["ok", "fail"]


class PricedChecks(TypedDict):
    """What a priced run needs, each by itself."""

    ledger: Check
    budget: Check
    queue: Check
    results: Check
    #: The ledger is the one that the deployment uses.
    ledger_identity: Check


class PricedReady(TypedDict):
    """Whether priced runs are accepted."""

    status: str
    checks: PricedChecks


class PackReservation(TypedDict):
    """What was set aside, and within which bounds the pack works."""

    max_cost_usd: str
    timebox_sec: int
    min_reliability_score: float


class PackPoll(TypedDict):
    """Where to look for the run, and how often."""

    href: str
    recommended_interval_ms: int


class PackReceiptMeta(TypedDict):
    trace_id: str | None
    profile_version: str


class PackCosts(TypedDict, total=False):
    """What the headers of an answer say about money. One that was lost on the way is not there."""

    reserved_usd: str
    used_usd: str
    budget_remaining_usd: str
    tokens_consumed: int


class PackReceipt(TypedDict):
    """The run is recorded, paid for in advance and queued. A receipt stays the same whatever becomes of the run."""

    run_id: str
    status: Literal["QUEUED"]
    reservation: PackReservation
    poll: PackPoll
    meta: PackReceiptMeta
    #: Under which it was accepted: the same submission with this key is the same run.
    idempotency_key: str
    #: Whether the key was known: this is the receipt of an earlier submission.
    replayed: bool
    #: As of now, also for a replay.
    costs: PackCosts


class PackCost(TypedDict):
    """`used_usd` is nothing until the run has ended."""

    reserved_usd: str
    used_usd: str
    minimum_fee_usd: str
    budget_remaining_usd: str


class PackArtifact(TypedDict):
    """A file beside the result, and where it can be read until `expires_at`."""

    name: str
    presigned_url: str
    sha256: str
    bytes: int
    content_type: str
    expires_at: str


class PackInline(TypedDict):
    """The `data` of the result."""

    data: Any


class PackImage(TypedDict):
    """What a pack is told of a file: one of its `images`."""

    kind: str
    bucket: str
    key: str


class PackOffer(TypedDict):
    """A pack, and whether workers can execute it now; `available` is None where nobody can tell."""

    pack_type: str
    available: bool | None
    #: What workers lack for it, with what to do about it.
    missing: list[str]
    #: What inputs may ask for, such as languages; None: anything.
    provides: list[str] | None


class PackList(TypedDict):
    """The packs of a deployment."""

    items: list[PackOffer]


class PackInput(PackImage):
    """A file that packs may read until it expires. `image` goes into a submission as it is."""

    sha256: str
    bytes: int
    content_type: str
    expires_at: str
    image: PackImage


class PackFailure(TypedDict):
    """Why a run failed."""

    type: str
    title: str
    detail: str
    reason_code: str


class PackResult(TypedDict, total=False):
    """Of a run that is COMPLETED: where its result can be read. Of one that FAILED: `reason_code` and `problem`."""

    presigned_url: str
    sha256: str
    expires_at: str
    artifacts: list[PackArtifact]
    inline: PackInline
    inline_omitted: Literal["TOO_LARGE", "UNAVAILABLE"]
    reason_code: str
    problem: PackFailure


class PackFile(TypedDict):
    """A file of a result that was saved, and where."""

    name: str
    path: str
    bytes: int
    sha256: str


class PackRunMeta(TypedDict):
    created_at: str
    updated_at: str
    trace_id: str | None


class PackRun(TypedDict):
    """A priced run as it is now. `result` is None until it has ended."""

    run_id: str
    status: PackStatus
    money_state: MoneyState
    cost: PackCost
    result: PackResult | None
    meta: PackRunMeta


class PackEnvelope(TypedDict):
    """The one document that a run leaves: `data` is the pack's own, everything else is ours.

    A member of `data` that was too large stands in a file: `{"$artifact": name}`, and `artifacts[name]` has its size
    and hash; `read_pack_result` fetches it.
    """

    schema_version: str
    run_id: str
    pack_type: str
    status: Literal["COMPLETED"]
    generated_at: str
    #: `reserved_usd`, `used_usd`, `minimum_fee_usd`.
    cost: dict[str, str]
    data: dict[str, Any]
    artifacts: dict[str, dict[str, Any]]
    #: `discard_log` and `blocked_log`.
    logs: dict[str, list[dict[str, Any]]]
    #: `trace_id`, `profile_version`, `reliability_met`, `tokens_consumed`, and what the pack tells besides.
    meta: dict[str, Any]


class RunCost(TypedDict, total=False):
    """What a priced run was given, what it was charged, and what it is charged at least."""

    reserved_usd_micros: int
    reserved_usd: str
    used_usd_micros: int
    used_usd: str
    minimum_fee_usd_micros: int
    minimum_fee_usd: str


class RunPackFields(TypedDict, total=False):
    """What `get_run` and the lists tell of a run of kind `pack` beside what every run has. What counts is its
    `PackRun`."""

    pack_type: str
    priced_status: PackStatus
    money_state: MoneyState
    reason_code: str | None
    cost: RunCost
    finalizing: bool
    tokens_consumed: int
    timebox_sec: int
    min_reliability_score: float
    trace_id: str | None
    ledger_version: int


class PackProblemPlace(TypedDict):
    """One thing that is wrong, and where: a JSON pointer into the body, or nothing for the whole request."""

    pointer: str
    message: str


class PackProblemBody(TypedDict):
    """Every 4xx and 5xx answer under `/v1`."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    reason_code: str
    trace_id: str
    run_id: NotRequired[str]
    errors: NotRequired[list[PackProblemPlace]]
    #: With RESERVATION_BELOW_PRICE.
    err_id: NotRequired[str]
    #: With RESERVATION_BELOW_PRICE: the least reservation that is accepted.
    price_usd: NotRequired[str]


class Budget(TypedDict):
    """A tenant's money: what is left, what is set aside for runs under way, what was charged, and what was put in."""

    tenant_id: str
    display_name: str
    status: str
    balance_usd_micros: int
    balance_usd: str
    held_usd_micros: int
    held_usd: str
    charged_usd_micros: int
    charged_usd: str
    credited_usd_micros: int
    credited_usd: str


class BudgetList(TypedDict):
    """By tenant id. There may be more after `next_after`; None: no more."""

    budgets: list[Budget]
    next_after: str | None


class BudgetJournalLine(TypedDict):
    """One money fact, and what it did to the tenant's accounts."""

    txn_id: int
    op_key: str
    kind: str
    run_id: str | None
    actor: str
    memo: str | None
    created_at: float
    available_usd_micros: int
    available_usd: str
    held_usd_micros: int
    held_usd: str
    charged_usd_micros: int
    charged_usd: str


class BudgetJournal(TypedDict):
    """The newest first. There may be more before `next_before`; None: no more."""

    lines: list[BudgetJournalLine]
    next_before: int | None


class BudgetSpendStep(TypedDict):
    """What was charged in one step, and for how many runs."""

    start_at: float
    charged_usd_micros: int
    charged_usd: str
    runs: int


#: A word of Python's own, which cannot be written as a field.
_From = TypedDict("_From", {"from": float})


class BudgetSpend(_From):
    """What was charged over time, oldest first; steps without a charge are left out. `from` is when it begins."""

    tenant_id: str
    now: float
    step_seconds: int
    steps: list[BudgetSpendStep]
