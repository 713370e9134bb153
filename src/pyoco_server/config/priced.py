"""The settings of priced runs: the addresses of their stores, and time limits.

Defaults are the contract's constants. Timers are whole seconds; small values are for tests and demonstrations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pyoco_server.config.packs import PackConfig
from pyoco_server.config.settings import (
    FLAG,
    NAME,
    PACKS,
    SUBJECT,
    ValueKind,
    check_all,
    declare,
    integer,
    values_in,
    written,
)
from pyoco_server.core.priced import constants
from pyoco_server.errors import SettingError
from pyoco_server.one_process import memory_problem

__all__ = ["AwsSettings", "PricedConfig"]

_SECONDS = integer(1, 10**9)
_MEMORY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: Redis drops a reservation and its money after a while (PRICED-50). A run must have been given up by then, and one
#: that was started at the last moment must have ended: a day is left for that.
_SPLIT_RESERVATION_SECONDS_MAX = constants.RESERVE_KEY_TTL_SECONDS - 86_400


def _address(*schemes: str, example: str) -> ValueKind:
    def problem(value: object) -> str | None:
        if value == "":
            return None
        if not isinstance(value, str):
            return "is not an address"
        try:
            parts = urlsplit(value)
            known = parts.scheme in schemes and bool(parts.netloc or parts.path.strip("/"))
            if parts.scheme == "memory" and "memory" in schemes:
                if not _MEMORY_NAME.fullmatch(value.removeprefix("memory://")):
                    return "must have the form memory://name, with letters, digits, dots, dashes and underscores"
                return memory_problem()
            _ = parts.port
        except ValueError:
            known = False
        return None if known else f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}"

    return ValueKind(str.strip, problem, example)


_LEDGER = _address("sqlite", "postgresql", "memory", example="postgresql://pyoco@127.0.0.1:5432/pyoco")
_BUDGET = _address("redis", "rediss", "memory", example="redis://127.0.0.1:6379/0")
_QUEUE = _address("sqs", example="sqs://dpp-runs")
_RESULTS = _address("s3", example="s3://dpp-results")


@dataclass(frozen=True, kw_only=True)
class AwsSettings:
    """The usual variables of the AWS SDKs. The SDK reads access keys itself; they are never stored here."""

    endpoint_url: str | None = None
    region: str = "us-east-1"

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Self:
        region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or cls.region
        return cls(endpoint_url=variables.get("AWS_ENDPOINT_URL") or None, region=region)


@dataclass(frozen=True, kw_only=True)
class PricedConfig:
    """The settings of priced runs. Wrong values raise SettingError, a ValueError that names the variable."""

    priced_enabled: bool = declare(
        True, FLAG, "GWK", "`0`: this process opens no ledger and does not serve priced runs."
    )
    ledger_url: str = declare(
        "",
        _LEDGER,
        "GWKA",
        "Ledger of priced runs: `sqlite:////abs/ledger.db` or `postgresql://user@host:port/db`. Unset: `ledger.db` in "
        "the data directory. `memory://name` is for tests in one process; nothing survives the process.",
        secret=True,
    )
    budget_url: str = declare(
        "",
        _BUDGET,
        "GWKA",
        "`redis://host:port/0`: budgets are in Redis. Unset: in the ledger's own transactions. `memory://name` is for "
        "tests in one process; nothing survives the process.",
        secret=True,
    )
    pack_queue_url: str = declare(
        "", _QUEUE, "GWK", "`sqs://dpp-runs`: priced runs are queued in SQS. Unset: in JetStream."
    )
    results_url: str = declare(
        "", _RESULTS, "GWK", "`s3://dpp-results`: results are stored in S3. Unset: in the JetStream object store."
    )
    results_secret: str = declare(
        "",
        ValueKind(str, lambda value: None if isinstance(value, str) else "is not a text", "a-long-random-text"),
        "G",
        "Secret that signs the URLs of results; not used with S3. Unset: one is generated and stored in NATS.",
        secret=True,
    )
    packs: tuple[str, ...] = declare(
        (), PACKS, "GW", "Packs that are offered and executed, separated by commas. Unset: all installed packs."
    )
    pack_slots: int = declare(
        0, integer(0, 4096), "W", "Concurrent priced runs of a worker; 0 = as many as it has slots."
    )
    pack_input_bucket: str = declare(
        "dpp-inputs", NAME, "GWK", "Bucket of files that packs read: an object store of NATS, or of S3 with S3 results."
    )
    pack_input_max_bytes: int = declare(
        20_971_520, integer(1, 10**10), "GW", "A larger file is neither accepted nor read."
    )
    pack_input_tenant_max_bytes: int = declare(
        1_073_741_824, integer(65_536, 10**15), "G", "Maximum size of all unexpired uploads of a tenant, in bytes."
    )
    pack_stream: str = declare("DPP_RUNS", NAME, "GWK", "Stream of priced runs.", has_variable=False)
    pack_subject: str = declare("dpp.runs", SUBJECT, "GWK", "Subject of priced runs.", has_variable=False)
    results_bucket: str = declare("dpp-results", NAME, "GWK", "Object store of results.", has_variable=False)

    priced_lease_ttl_sec: int = declare(
        constants.LEASE_TTL_SECONDS,
        _SECONDS,
        "GWK",
        "A worker without heartbeats for longer loses its priced run.",
        has_variable=False,
    )
    priced_heartbeat_sec: int = declare(
        constants.LEASE_HEARTBEAT_INTERVAL_SECONDS,
        _SECONDS,
        "W",
        "Time between heartbeats of a priced run.",
        has_variable=False,
    )
    priced_reaper_interval_sec: int = declare(
        constants.REAPER_INTERVAL_SECONDS, _SECONDS, "K", "Time between scans for expired leases.", has_variable=False
    )
    priced_sweeper_interval_sec: int = declare(
        constants.SWEEPER_INTERVAL_SECONDS,
        _SECONDS,
        "K",
        "Time between scans for runs that no worker starts.",
        has_variable=False,
    )
    priced_reconcile_interval_sec: int = declare(
        constants.RECONCILE_INTERVAL_SECONDS,
        _SECONDS,
        "K",
        "Time between scans for runs whose finalization was interrupted.",
        has_variable=False,
    )
    priced_reconcile_after_sec: int = declare(
        constants.FINALIZE_STALE_SECONDS,
        _SECONDS,
        "GWK",
        "Such a finalization is taken over after this time.",
        has_variable=False,
    )
    priced_reservation_ttl_sec: int = declare(
        constants.RESERVATION_TTL_SECONDS, _SECONDS, "GWK", "A run that is queued for longer is given up and refunded."
    )
    priced_delay_max_sec: int = declare(
        86_400, integer(0, 10**9), "G", "A priced run may be delayed by at most this time; 0 = not at all."
    )
    priced_submit_abandon_sec: int = declare(
        constants.SUBMIT_ABANDON_SECONDS,
        _SECONDS,
        "GWK",
        "An interrupted submission is given up after this time.",
        has_variable=False,
    )
    priced_resend_after_sec: int = declare(
        constants.RESEND_AFTER_SECONDS,
        _SECONDS,
        "GWK",
        "A run whose queueing is unconfirmed is queued again after this time.",
        has_variable=False,
    )
    priced_orphan_after_sec: int = declare(
        600, _SECONDS, "K", "Money reserved for no known run is released after this time (Redis).", has_variable=False
    )
    priced_retention_sec: int = declare(
        constants.RETENTION_DAYS * 86_400, _SECONDS, "GWK", "Results and inputs of priced runs are kept for this time."
    )
    priced_retention_interval_sec: int = declare(
        constants.RETENTION_INTERVAL_SECONDS,
        _SECONDS,
        "K",
        "Time between scans for runs past their retention.",
        has_variable=False,
    )
    priced_audit_interval_sec: int = declare(
        constants.AUDIT_INTERVAL_SECONDS, _SECONDS, "K", "Time between audits of the journal.", has_variable=False
    )
    priced_rate_limit_per_min: int = declare(
        constants.RATE_LIMIT_PER_MINUTE,
        integer(1, 10**9),
        "G",
        "Requests per minute of a tenant: separately for reads and for submissions.",
    )

    #: The settings of the packs themselves.
    pack: PackConfig = field(default_factory=PackConfig)

    def __post_init__(self) -> None:
        check_all(self)
        if self.priced_heartbeat_sec >= self.priced_lease_ttl_sec:
            raise SettingError(
                f"priced_heartbeat_sec={written(self.priced_heartbeat_sec)} must be below "
                f"priced_lease_ttl_sec={written(self.priced_lease_ttl_sec)}; "
                f"example: priced_heartbeat_sec={max(1, self.priced_lease_ttl_sec // 4)}"
            )

        if self.is_split and self.priced_reservation_ttl_sec > _SPLIT_RESERVATION_SECONDS_MAX:
            raise SettingError(
                f"PYOCO_PRICED_RESERVATION_TTL_SEC={written(self.priced_reservation_ttl_sec)} must be at most "
                f"{_SPLIT_RESERVATION_SECONDS_MAX} while PYOCO_BUDGET_URL is set; "
                f"example: PYOCO_PRICED_RESERVATION_TTL_SEC={constants.RESERVATION_TTL_SECONDS}"
            )

    @classmethod
    def read(cls, variables: Mapping[str, str], **overrides: object) -> Self:
        """Read the settings from these variables. Raises SettingError."""
        values = values_in(variables, cls)
        values["pack"] = PackConfig.read(variables)
        return cls(**{**values, **{name: value for name, value in overrides.items() if value is not None}})

    def ledger_address(self, data_dir: str) -> str:
        """The address of the ledger; by default a file in the data directory."""
        return self.ledger_url or f"sqlite:///{(Path(data_dir) / 'ledger.db').absolute()}"

    @property
    def delay_seconds_max(self) -> float:
        """The longest delay: the reservation, which lives on from then, must not outlive the run or its money."""
        longest = self.priced_retention_sec - self.priced_reservation_ttl_sec
        if self.is_split:
            longest = min(longest, _SPLIT_RESERVATION_SECONDS_MAX - self.priced_reservation_ttl_sec)
        return float(max(0, min(self.priced_delay_max_sec, longest)))

    @property
    def is_split(self) -> bool:
        return bool(self.budget_url)
