"""A priced run as stored in the ledger, the submission it came from, and the intent of the process that ends it.

Instants are integer microseconds of unix time, by the ledger's clock. Money is integer micros of a US dollar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from pyoco_server.core.priced.plain_text import is_plain, plain
from pyoco_server.core.states.priced import ENDS, Actor, At, Money, Stage, Status

__all__ = ["Intent", "MoneyOp", "NewRun", "PricedRun", "ResultPointer", "Tenant", "TenantStatus"]

_CODE_LENGTH_MAX = 64
_DETAIL_LENGTH_MAX = 500


class TenantStatus(StrEnum):
    ACTIVE = "ACTIVE"
    SUSPENDED = "SUSPENDED"


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """The payer of runs. A tenant that is not in the ledger yet is ACTIVE and has no money."""

    tenant_id: str
    display_name: str
    status: TenantStatus = TenantStatus.ACTIVE
    #: Requests per minute, in each bucket; None: the default.
    rate_limit_per_min: int | None = None
    created_at: int = 0


class MoneyOp(StrEnum):
    SETTLE = "SETTLE"
    REFUND = "REFUND"


@dataclass(frozen=True, kw_only=True)
class ResultPointer:
    """Where the result is stored. Written to the row only by a commit."""

    bucket: str
    key: str
    sha256: str
    size_bytes: int
    #: name, key, sha256, bytes and content_type of each artifact.
    artifacts: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        texts = [self.bucket, self.key, self.sha256]
        texts += [text for item in self.artifacts for text in item.values() if isinstance(text, str)]
        assert all(is_plain(text) for text in texts), "what cannot be stored must not be claimed"

    def document(self) -> dict[str, Any]:
        return {
            "bucket": self.bucket,
            "key": self.key,
            "sha256": self.sha256,
            "bytes": self.size_bytes,
            "artifacts": [dict(item) for item in self.artifacts],
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            bucket=document["bucket"],
            key=document["key"],
            sha256=document["sha256"],
            size_bytes=document["bytes"],
            artifacts=tuple(document["artifacts"]),
        )


@dataclass(frozen=True, kw_only=True)
class Intent:
    """The decision of a claim's holder. Recorded with the claim, so that another process can complete it without
    guessing.

    Its texts are made plain: a text that a database does not accept could be claimed as JSON, but never be committed.
    """

    status: Status
    money_op: MoneyOp
    charge_usd_micros: int
    reason_code: str | None = None
    #: Never contains anything a user sent.
    error_detail: str | None = None
    tokens_consumed: int = 0
    result: ResultPointer | None = None

    def __post_init__(self) -> None:
        assert self.status in (Status.COMPLETED, Status.FAILED)
        assert (self.status is Status.COMPLETED) == (self.result is not None)
        assert type(self.charge_usd_micros) is int
        assert type(self.tokens_consumed) is int
        assert self.charge_usd_micros >= 0
        assert self.money_op is MoneyOp.SETTLE or self.charge_usd_micros == 0
        for name, length_max in (("reason_code", _CODE_LENGTH_MAX), ("error_detail", _DETAIL_LENGTH_MAX)):
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, plain(text, length_max))

    def document(self) -> dict[str, Any]:
        return {
            "status": self.status.value,
            "money_op": self.money_op.value,
            "charge_usd_micros": self.charge_usd_micros,
            "reason_code": self.reason_code,
            "error_detail": self.error_detail,
            "tokens_consumed": self.tokens_consumed,
            "result": self.result.document() if self.result is not None else None,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Parse a stored intent. Raises ValueError for a document that this code did not write."""
        try:
            result = document["result"]
            return cls(
                status=Status(document["status"]),
                money_op=MoneyOp(document["money_op"]),
                charge_usd_micros=document["charge_usd_micros"],
                reason_code=document["reason_code"],
                error_detail=document["error_detail"],
                tokens_consumed=document["tokens_consumed"],
                result=ResultPointer.of(result) if result is not None else None,
            )
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError("this is no intent") from error


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """A validated submission: everything in it can be recorded as it is."""

    run_id: str
    tenant_id: str
    pack_type: str
    profile_version: str
    idempotency_key: str
    payload_hash: str
    reserved_usd_micros: int
    minimum_fee_usd_micros: int
    timebox_sec: int
    min_reliability_e4: int
    inline: int
    artifacts: Mapping[str, Any]
    inputs: Mapping[str, Any]
    trace_id: str
    #: The API key of the submission; shown in lists, not part of the money.
    api_key_id: str | None = None
    #: The run must not start before this instant (DELAY-7).
    not_before: int | None = None
    #: The tick of a schedule that the run is for (SCHED-14).
    schedule: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class PricedRun:
    """One complete row of `runs`. Column names differ where they include the unit or the type: see
    `ports/ledger/rows.py`."""

    run_id: str
    tenant_id: str
    pack_type: str
    profile_version: str
    status: Status
    money: Money
    stage: Stage
    #: None only after the key was released.
    idempotency_key: str | None
    payload_hash: str
    version: int
    reserved_usd_micros: int
    #: The charge; None until the run has ended.
    actual_cost_usd_micros: int | None
    minimum_fee_usd_micros: int
    timebox_sec: int
    min_reliability_e4: int
    inline: int
    artifacts: Mapping[str, Any]
    result: ResultPointer | None
    tokens_consumed: int
    retention_until: int
    lease_token: str | None
    lease_expires_at: int | None
    finalize_token: str | None
    finalize_claimed_at: int | None
    finalize_actor: Actor | None
    intent: Intent | None
    enqueued_at: int | None
    reason_code: str | None
    error_detail: str | None
    trace_id: str | None
    created_at: int
    updated_at: int
    #: When a worker started it; None: not started.
    started_at: int | None = None
    api_key_id: str | None = None
    #: It must not start before this instant.
    not_before: int | None = None
    #: The tick of a schedule that it is for.
    schedule: Mapping[str, Any] | None = None

    @property
    def at(self) -> At:
        return At(self.status, self.money, self.stage)

    @property
    def has_ended(self) -> bool:
        return self.status in ENDS

    @property
    def used_usd_micros(self) -> int:
        """The charge; 0 until the run has ended (PRICED-75)."""
        return (self.actual_cost_usd_micros or 0) if self.has_ended else 0
