"""What is known of the stores of priced runs at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.diagnosis.facts import Unknown

__all__ = ["Absent", "Bucket", "Ledger", "PricedFacts", "Redis", "Sqs"]


@dataclass(frozen=True)
class Absent:
    """It answers that there is none, or there is no file."""

    where: str


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The ledger, as far as a look at it goes."""

    #: Without a password.
    where: str
    #: None: it has no tables.
    version: str | None
    wanted: str
    #: False: it is newer than the program that looks.
    is_known: bool = True
    #: Of a file: who may read it, and how SQLite writes it. None: it is no file.
    mode: int | None = None
    journal: str = ""
    #: None: it has none: no tables, or those of an older version.
    ledger_id: str | None = None
    #: Runs whose money waits for an operator, some of them.
    disputed: tuple[str, ...] = ()
    #: Runs that a keeper should have ended minutes ago, some of them.
    overdue: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        return self.version == self.wanted


@dataclass(frozen=True)
class Redis:
    """The Redis that holds budgets."""

    #: Why it cannot hold them at all; empty: it can.
    unfit: str = ""
    #: What would lose them one day.
    dangers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sqs:
    name: str
    waiting: int
    letters: int


@dataclass(frozen=True)
class Bucket:
    """Of S3."""

    name: str


@dataclass(frozen=True, kw_only=True)
class PricedFacts:
    """Everything the rules about priced runs go by."""

    ledger: Ledger | Absent | Unknown
    #: None: budgets are in the ledger, the queue and the results in JetStream, where streams are looked at anyway.
    redis: Redis | Unknown | None = None
    sqs: Sqs | Absent | Unknown | None = None
    bucket: Bucket | Unknown | None = None
    inputs_bucket: Bucket | Unknown | None = None
    #: The stream of dead letters, where the queue is in JetStream.
    letters_stream: str = "DPP_RUNS_DLQ"
    #: How long the secret is that signs addresses of results; None: it is made, and kept in NATS.
    secret_length: int | None = None
