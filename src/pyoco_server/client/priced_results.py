"""Response types for priced runs and budgets. Plain dicts; the types are for editors and type checkers.

Amounts are strings with four decimals, `0.2500`, or whole micros of a US dollar; never floats. Under `/v1` instants are
strings, `2026-01-31T12:00:00Z`; elsewhere they are unix seconds. Responses may have further fields, which are passed
through.
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
    """The readiness of each dependency of priced runs."""

    ledger: Check
    budget: Check
    queue: Check
    results: Check
    #: Whether this is the ledger that the deployment uses.
    ledger_identity: Check


class PricedReady(TypedDict):
    """Whether priced runs are accepted."""

    status: str
    checks: PricedChecks


class PackReservation(TypedDict):
    """The reserved amount and the limits of the pack's execution."""

    max_cost_usd: str
    timebox_sec: int
    min_reliability_score: float


class PackPoll(TypedDict):
    """Where and how often to poll the run."""

    href: str
    recommended_interval_ms: int


class PackReceiptMeta(TypedDict):
    trace_id: str | None
    profile_version: str


class PackCosts(TypedDict, total=False):
    """The amounts in the response headers. A header that a proxy has removed is missing here."""

    reserved_usd: str
    used_usd: str
    budget_remaining_usd: str
    tokens_consumed: int


class PackReceipt(TypedDict):
    """The run is recorded, its cost reserved, and its job queued. A receipt never changes, whatever the outcome."""

    run_id: str
    status: Literal["QUEUED"]
    reservation: PackReservation
    poll: PackPoll
    meta: PackReceiptMeta
    #: The key of the submission: submitting it again with this key returns the same run.
    idempotency_key: str
    #: Whether this is the receipt of an earlier submission with the same key.
    replayed: bool
    #: The current amounts, also for a replay.
    costs: PackCosts


class PackCost(TypedDict):
    """The cost of a run. `used_usd` is zero until the run has ended."""

    reserved_usd: str
    used_usd: str
    minimum_fee_usd: str
    budget_remaining_usd: str


class PackArtifact(TypedDict):
    """A file beside the result, with a signed URL that is valid until `expires_at`."""

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
    """A file as a pack receives it: an element of `images`."""

    kind: str
    bucket: str
    key: str


class PackOffer(TypedDict):
    """A pack, and whether workers can execute it now. `available` is None if that is not known."""

    pack_type: str
    available: bool | None
    #: What workers lack for it, and how to fix that.
    missing: list[str]
    #: The choices that inputs may name, such as languages; None: not restricted.
    provides: list[str] | None


class PackList(TypedDict):
    """The packs of a deployment."""

    items: list[PackOffer]


class PackInput(PackImage):
    """A file that packs may read until it expires. Put `image` into a submission unchanged."""

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
    """Of a COMPLETED run: where its result can be read. Of a FAILED run: `reason_code` and `problem`."""

    presigned_url: str
    sha256: str
    expires_at: str
    artifacts: list[PackArtifact]
    inline: PackInline
    inline_omitted: Literal["TOO_LARGE", "UNAVAILABLE"]
    reason_code: str
    problem: PackFailure


class PackFile(TypedDict):
    """A file of a result that was saved, and its path."""

    name: str
    path: str
    bytes: int
    sha256: str


class PackRunMeta(TypedDict):
    created_at: str
    updated_at: str
    trace_id: str | None


class PackRun(TypedDict):
    """The current state of a priced run. `result` is None until the run has ended."""

    run_id: str
    status: PackStatus
    money_state: MoneyState
    cost: PackCost
    result: PackResult | None
    meta: PackRunMeta


class PackEnvelope(TypedDict):
    """The result document of a run. `data` comes from the pack, all other fields from pyoco-server.

    A member of `data` that was too large is stored in a file: its value is `{"$artifact": name}`, and `artifacts[name]`
    has the size and hash; `read_pack_result` fetches it.
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
    #: `trace_id`, `profile_version`, `reliability_met`, `tokens_consumed`, and further values of the pack.
    meta: dict[str, Any]


class RunCost(TypedDict, total=False):
    """The reserved amount, the charge and the minimum fee of a priced run."""

    reserved_usd_micros: int
    reserved_usd: str
    used_usd_micros: int
    used_usd: str
    minimum_fee_usd_micros: int
    minimum_fee_usd: str


class RunPackFields(TypedDict, total=False):
    """The additional fields of runs of kind `pack` in `get_run` and in lists. The authoritative state is `PackRun`."""

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
    """One error and its place: a JSON pointer into the body, or an empty string for the request as a whole."""

    pointer: str
    message: str


class PackProblemBody(TypedDict):
    """The body of every 4xx and 5xx response under `/v1`."""

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
    """A tenant's money: available, reserved for runs under way, charged, and credited."""

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
    """One page of budgets, by tenant id. There may be more after `next_after`; None: last page."""

    budgets: list[Budget]
    next_after: str | None


class BudgetJournalLine(TypedDict):
    """One money fact, and its effect on the tenant's accounts."""

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
    """One page of journal lines, newest first. There may be more before `next_before`; None: last page."""

    lines: list[BudgetJournalLine]
    next_before: int | None


class BudgetSpendStep(TypedDict):
    """The charges in one step, and the number of runs charged."""

    start_at: float
    charged_usd_micros: int
    charged_usd: str
    runs: int


#: `from` is a Python keyword and cannot be a class field.
_From = TypedDict("_From", {"from": float})


class BudgetSpend(_From):
    """Charges over time, oldest first; steps without a charge are omitted. `from` is the start of the period."""

    tenant_id: str
    now: float
    step_seconds: int
    steps: list[BudgetSpendStep]
