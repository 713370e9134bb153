"""The facts about the stores of priced runs at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.diagnosis.facts import Unknown

__all__ = ["Absent", "BucketFacts", "LedgerFacts", "PricedFacts", "Redis", "Sqs"]


@dataclass(frozen=True)
class Absent:
    """The server reports that it does not exist, or there is no file."""

    where: str


@dataclass(frozen=True, kw_only=True)
class LedgerFacts:
    """The ledger, as far as it was examined."""

    #: Without a password.
    where: str
    #: None: it has no tables.
    version: str | None
    wanted: str
    #: False: it is newer than the program that examines it.
    is_known: bool = True
    #: For a file: its permissions, and SQLite's journal mode. None: it is not a file.
    mode: int | None = None
    journal: str = ""
    #: None: it has no tables, or those of an older version without an id.
    ledger_id: str | None = None
    #: Some of the runs whose money waits for an operator.
    disputed: tuple[str, ...] = ()
    #: Some of the runs that a keeper should have ended minutes ago.
    overdue: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        return self.version == self.wanted


@dataclass(frozen=True)
class Redis:
    """The Redis that holds budgets."""

    #: Why it cannot hold them at all; empty: it can.
    unfit: str = ""
    #: Configuration under which it would eventually lose them.
    dangers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sqs:
    name: str
    waiting: int
    dead_letters: int


@dataclass(frozen=True)
class BucketFacts:
    """An S3 bucket."""

    name: str


@dataclass(frozen=True, kw_only=True)
class PricedFacts:
    """The input of all rules about priced runs."""

    ledger: LedgerFacts | Absent | Unknown
    #: None: budgets are in the ledger, and the queue and results are in JetStream, whose streams are checked anyway.
    redis: Redis | Unknown | None = None
    sqs: Sqs | Absent | Unknown | None = None
    bucket: BucketFacts | Unknown | None = None
    inputs_bucket: BucketFacts | Unknown | None = None
    #: The stream of dead letters, if the queue is in JetStream.
    dead_letters_stream: str = "DPP_RUNS_DLQ"
    #: The length of the secret that signs URLs of results; None: it is generated, and stored in NATS.
    secret_length: int | None = None
