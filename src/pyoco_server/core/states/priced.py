"""The states of a priced run and all steps between them. Status, money and stage change in one write or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ENDS", "STEPS", "Actor", "At", "Basis", "IllegalStep", "Money", "Stage", "StateChange", "Status", "Step"]


class Status(StrEnum):
    """The state of the work. Each description names who moves the run on."""

    #: Accepted, or being accepted; not started. A worker starts it; the sweeper ends it when it is too old.
    QUEUED = "QUEUED"
    #: A worker started it and holds, or held, the lease. That worker ends it, or the reaper does once the lease has
    #: expired.
    PROCESSING = "PROCESSING"
    #: The result is stored and published.
    COMPLETED = "COMPLETED"
    #: Ended without a published result.
    FAILED = "FAILED"
    #: The retention period has passed: content removed, money facts kept.
    EXPIRED = "EXPIRED"


class Money(StrEnum):
    """The state of the money."""

    #: The row exists, nothing is reserved yet. Occurs in split mode only; the sweeper ends the run.
    NONE = "NONE"
    #: The maximum cost is set aside.
    RESERVED = "RESERVED"
    #: The charge is taken, the rest returned.
    SETTLED = "SETTLED"
    #: Everything is returned.
    REFUNDED = "REFUNDED"
    #: The money facts contradict each other; only an operator can resolve this.
    DISPUTED = "DISPUTED"


class Stage(StrEnum):
    """Who has the right to end the run."""

    #: Not claimed (`NULL` in the table).
    OPEN = "OPEN"
    #: One actor has the exclusive right. Reconcile takes it over if that actor takes too long.
    CLAIMED = "CLAIMED"
    #: It has ended.
    COMMITTED = "COMMITTED"


class Actor(StrEnum):
    """The component that changes a run or moves money."""

    API = "api"
    WORKER = "worker"
    REAPER = "reaper"
    SWEEPER = "sweeper"
    RECONCILE = "reconcile"
    OPERATOR = "operator"


@dataclass(frozen=True)
class At:
    """One combination of status, money and stage."""

    status: Status
    money: Money
    stage: Stage

    def __str__(self) -> str:
        return f"{self.status}/{self.money}/{self.stage}"


@dataclass(frozen=True)
class StateChange:
    """The members that a step sets; None leaves a member unchanged."""

    status: Status | None = None
    money: Money | None = None
    stage: Stage | None = None

    def of(self, at: At) -> At:
        return At(self.status or at.status, self.money or at.money, self.stage or at.stage)


@dataclass(frozen=True)
class Step:
    """The combinations from which a step is allowed, and those it leads to: nearly always a single one."""

    sources: frozenset[At]
    changes: tuple[StateChange, ...]
    #: Whether the step increments `version`, by exactly one.
    counts: bool = True

    def arrivals(self) -> Iterator[tuple[At, At]]:
        for source in sorted(self.sources, key=str):
            for change in self.changes:
                yield source, change.of(source)


class IllegalStep(Exception):
    """A step that the run's current combination does not allow. A bug of ours, never the user's mistake."""

    def __init__(self, step: str, at: At) -> None:
        super().__init__(f"{step} cannot be taken at {at}")
        self.step, self.at = step, at


_S, _M, _G = Status, Money, Stage
_RUNNING = (_S.QUEUED, _S.PROCESSING)
_CLAIM = StateChange(stage=_G.CLAIMED)


def _at(statuses: tuple[Status, ...], moneys: tuple[Money, ...], stage: Stage) -> frozenset[At]:
    return frozenset(At(status, money, stage) for status in statuses for money in moneys)


_NEW = _at((_S.QUEUED,), (_M.NONE,), _G.OPEN)
_READY = _at((_S.QUEUED,), (_M.RESERVED,), _G.OPEN)
_LEASED = _at((_S.PROCESSING,), (_M.RESERVED,), _G.OPEN)
_LEASED_CLAIMED = _at((_S.PROCESSING,), (_M.RESERVED,), _G.CLAIMED)
_HELD = _at(_RUNNING, (_M.NONE, _M.RESERVED), _G.CLAIMED) - _at((_S.PROCESSING,), (_M.NONE,), _G.CLAIMED)

_COMPLETED = StateChange(_S.COMPLETED, _M.SETTLED, _G.COMMITTED)
_FAILED = StateChange(_S.FAILED, _M.SETTLED, _G.COMMITTED)
_REFUNDED = StateChange(_S.FAILED, _M.REFUNDED, _G.COMMITTED)

#: The complete table of priced runs (contract 5.2). A step that is not listed cannot be taken. T1 creates a row at
#: QUEUED/NONE/OPEN, and T3 deletes one that is still there; the other guards of each step are in `ports/ledger`.
STEPS: dict[str, Step] = {
    "T2": Step(_NEW, (StateChange(money=_M.RESERVED),)),  # the money is reserved
    "T3": Step(_NEW, (), counts=False),  # it could not be reserved: the row is deleted
    "T4": Step(_READY, (StateChange(status=_S.PROCESSING),)),  # a worker starts it
    "T5": Step(_LEASED, (StateChange(),), counts=False),  # heartbeat
    "T6": Step(_LEASED, (_CLAIM,)),  # its worker has an outcome
    "T7": Step(_LEASED_CLAIMED, (_COMPLETED,)),  # worker commits success
    "T8": Step(_LEASED_CLAIMED, (_FAILED,)),  # worker commits failure
    "T9": Step(_LEASED, (_CLAIM,)),  # the lease expired: reaper
    "T10": Step(_LEASED_CLAIMED, (_FAILED,)),  # reaper commits
    "T11": Step(_READY, (_CLAIM,)),  # queued too long: sweeper
    "T12": Step(_NEW, (_CLAIM,)),  # the submission was cut short: sweeper
    "T13": Step(_READY, (_CLAIM,)),  # queueing failed: api
    "T14": Step(_HELD, (_REFUNDED,)),  # refund commits; a started run only for PACK_UNAVAILABLE
    "T15": Step(_HELD, (StateChange(),)),  # a stale claim is taken over: reconcile
    "T16": Step(
        _at((_S.COMPLETED, _S.FAILED), (_M.SETTLED, _M.REFUNDED), _G.COMMITTED)
        - {At(_S.COMPLETED, _M.REFUNDED, _G.COMMITTED)},
        (StateChange(status=_S.EXPIRED),),
    ),  # retention
    "T17": Step(_HELD, (StateChange(money=_M.DISPUTED),)),  # the money facts contradict each other
    "T18": Step(_at(_RUNNING, (_M.DISPUTED,), _G.CLAIMED), (_COMPLETED, _FAILED, _REFUNDED)),  # an operator decides
    "T19": Step(_HELD, (StateChange(),)),  # the result is missing: another intent
    "T20": Step(_READY, (_CLAIM,)),  # cancelled before its time: api
}

#: States without outgoing steps, except for the archive step. Derived, so that the set is defined only once.
ENDS: frozenset[Status] = frozenset(
    arrival.status for step in STEPS.values() for _, arrival in step.arrivals() if arrival.stage is Stage.COMMITTED
)


class Basis(StrEnum):
    """The grounds on which an actor claims the right to end a run; each is one step with its own guards."""

    LEASE = "T6"
    LEASE_EXPIRED = "T9"
    AGED = "T11"
    ABANDONED = "T12"
    SEND_FAILED = "T13"
    NOT_DUE = "T20"
