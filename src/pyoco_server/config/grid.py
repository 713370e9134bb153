"""The settings of programs. Their variables have the names of the grid contract, without `PYOCO_`."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pyoco_server.config.settings import (
    FLAG,
    INTERVAL,
    NAME,
    PATH,
    Audience,
    ValueKind,
    check_all,
    choice,
    declare,
    integer,
    values_in,
    written,
)
from pyoco_server.errors import SettingError

__all__ = ["CPU_CAP_DEFAULT", "GridConfig"]

_KIB, _MIB, _GIB = 1024, 1024**2, 1024**3
_DAY = 86_400
_HEARTBEAT_SECONDS, _LEASE_SECONDS = 5.0, 20.0
_ACK_WAIT, _HTTP_AUTH = "PYOCO_CONSUMER_ACK_WAIT_SEC", "PYOCO_HTTP_AUTH_MODE"
CPU_CAP_DEFAULT, _CPU_CAP_MIN, _CPU_CAP_MAX = 0.75, 0.10, 0.95

_GROUP = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
_PATTERN = re.compile(r"[A-Za-z0-9_*?\[\]!-]{1,64}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

GROUP = ValueKind(
    str.strip,
    lambda value: None if isinstance(value, str) and _GROUP.fullmatch(value) else "may hold letters, digits, '_', '-'",
)


def _list_of(pattern: re.Pattern[str], what: str, example: str) -> ValueKind:
    def problem(value: object) -> str | None:
        if not isinstance(value, tuple):
            return "is not a tuple of texts"
        bad = [item for item in value if not (isinstance(item, str) and pattern.fullmatch(item))]
        return f"has {str(bad[0])[:80]!r}, which is not {what}" if bad else None

    return ValueKind(lambda text: tuple(part.strip() for part in text.split(",") if part.strip()), problem, example)


KEY_IDS = _list_of(_ID, "the id of an API key", "0123456789abcdef")
GLOBS = _list_of(_PATTERN, "a pattern of program names", "calc*,render")
VARIABLES = _list_of(_VARIABLE, "the name of a variable", "LD_LIBRARY_PATH,MY_LICENCE")
#: Safe to embed in the configuration of NATS and in URLs: no character that is special there.
_SECRET = re.compile(r"[A-Za-z0-9_-]{16,128}", re.ASCII)
SECRET_OR_NONE = ValueKind(
    str.strip,
    lambda value: (
        None
        if isinstance(value, str) and (not value or _SECRET.fullmatch(value))
        else "must be 16 to 128 letters, digits, '_', '-'"
    ),
    "$(openssl rand -hex 32)",
)
ID_OR_NONE = ValueKind(
    str.strip,
    lambda value: (
        None
        if isinstance(value, str) and (not value or _ID.fullmatch(value))
        else "may hold letters, digits, '_', '-', 64 at most"
    ),
    "render-1",
)


def _read_cpu_cap(text: str) -> float:
    """GRID-114: clamp to the bounds; text that is not a number becomes the default. Both log a warning."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    used = CPU_CAP_DEFAULT if math.isnan(value) else min(max(value, _CPU_CAP_MIN), _CPU_CAP_MAX)
    if used != value:
        logging.getLogger(__name__).warning("invalid WORKER_CPU_CAP=%r; using %g", text[:40], used)
    return used


CPU_CAP = ValueKind(
    _read_cpu_cap,
    lambda value: (
        None
        if isinstance(value, float | int) and not isinstance(value, bool) and _CPU_CAP_MIN <= value <= _CPU_CAP_MAX
        else f"must be from {_CPU_CAP_MIN:g} to {_CPU_CAP_MAX:g}"
    ),
)


def _own(default: Any, kind: ValueKind, used_by: str, text: str, **more: bool | str | Audience) -> Any:
    return declare(default, kind, used_by, text, prefix="", **more)


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """The settings of programs (section 25.2). Wrong values raise SettingError, which names the variable."""

    exec_group: str = _own("default", GROUP, "GDPK", "Group of queues, doors and workers that this process belongs to.")
    exec_replicas: int = _own(
        0,
        integer(0, 5),
        "GDPK",
        "Copies of each stream and bucket of programs; 0 = the value of PYOCO_JETSTREAM_REPLICAS.",
        audience=Audience.EXISTING,
    )

    # Queue limits and attempts.
    exec_queue_max_jobs: int = _own(
        1_000_000,
        integer(1, 10**9),
        "GDPK",
        "Maximum number of queued jobs; more are refused.",
        audience=Audience.EXISTING,
    )
    exec_queue_max_bytes: int = _own(
        8 * _GIB, integer(65_536, 2**62), "GDPK", "Maximum size of all queued jobs in bytes."
    )
    exec_inline_max: int = _own(
        16 * _KIB,
        integer(0, 256 * _KIB),
        "GD",
        "Input files with a larger total size are stored as an object.",
        audience=Audience.EXISTING,
    )
    exec_max_attempts: int = _own(5, integer(1, 1_000), "GDP", "Attempts that may fail before a job is given up.")
    exec_max_lost: int = _own(
        20, integer(1, 10_000), "GDP", "Attempts that may be lost with their worker before a job is given up."
    )
    exec_ack_timeout_sec: float = _own(
        30.0, INTERVAL, "DP", "An attempt without heartbeats for this time has failed.", audience=Audience.EXISTING
    )
    exec_worker_down_delay_sec: float = _own(
        5.0,
        INTERVAL,
        "DP",
        "A job of a lost worker waits for this time: the worker may reconnect.",
        audience=Audience.EXISTING,
    )
    exec_run_heartbeat_sec: float = _own(
        _HEARTBEAT_SECONDS,
        INTERVAL,
        "DP",
        "Time between heartbeats of a running job. If unset and the lease is below 20: a quarter of the lease.",
        audience=Audience.EXISTING,
    )
    exec_lease_fresh_sec: float = _own(
        _LEASE_SECONDS,
        INTERVAL,
        "GDPK",
        f"A heartbeat older than this is stale. If unset and `{_ACK_WAIT}` is below 30: two thirds of that.",
        audience=Audience.EXISTING,
    )
    exec_job_timeout_sec: int = _own(3_600, integer(1, _DAY), "GDP", "Run time limit of a job that sets none.")
    exec_default_cap: int = _own(4, integer(1, 10_000), "GDP", "Concurrent jobs of a client that has set no cap.")
    exec_sweep_sec: float = _own(
        600.0, INTERVAL, "GDK", "Time between scans for jobs that are missing from the queue.", has_variable=False
    )
    exec_stale_sec: float = _own(
        600.0, INTERVAL, "GDK", "Such a scan skips jobs that changed within this time.", has_variable=False
    )

    # Sizes and retention of inputs and outputs.
    exec_stdio_max: int = _own(
        _MIB,
        integer(1_024, 2 * _MIB),
        "P",
        "Bytes of stdout, and of stderr, that are kept.",
        audience=Audience.EXISTING,
    )
    exec_output_max_bytes: int = _own(
        _GIB, integer(1_024, 2**40), "GDPF", "Maximum size of the files a program leaves behind, in bytes."
    )
    exec_http_max_bytes: int = _own(
        512 * _MIB, integer(1_024, 2**40), "G", "Maximum size of one `POST /jobs`, in bytes."
    )
    exec_artifact_ttl_sec: float = _own(604_800.0, INTERVAL, "GDPK", "Inputs and archives of jobs are kept this long.")
    exec_events: bool = _own(True, FLAG, "GDPK", "Whether a history of events is kept.")

    # Doors.
    exec_max_conns: int = _own(1_000, integer(1, 1_000_000), "D", "Maximum number of connections of a door.")
    exec_max_conns_per_ip: int = _own(
        200,
        integer(1, 1_000_000),
        "D",
        "Maximum number of connections from one address.",
        audience=Audience.EXISTING,
    )
    exec_drain_sec: float = _own(
        30.0, INTERVAL, "D", "On SIGTERM a door waits this long for its workers to disconnect."
    )
    exec_hello_sec: float = _own(
        10.0, INTERVAL, "DPF", "Time limit for a Hello, and for its response.", has_variable=False
    )
    exec_frame_sec: float = _own(
        30.0, INTERVAL, "DPF", "Time limit for a complete frame, from its first byte.", has_variable=False
    )
    exec_idle_sec: float = _own(
        60.0, INTERVAL, "DPF", "A connection without a frame for this time is closed.", has_variable=False
    )
    exec_write_sec: float = _own(
        30.0, INTERVAL, "DPF", "A peer that does not read for this time is disconnected.", has_variable=False
    )
    exec_heartbeat_sec: float = _own(
        15.0, INTERVAL, "DPF", "Idle time after which a heartbeat is sent.", has_variable=False
    )
    exec_auth: str = _own(
        "none",
        choice("none", "api_key"),
        "GD",
        "Whether a Hello needs an API key and an ACL record. Unset: doors and routers follow `PYOCO_HTTP_AUTH_MODE`; "
        "`POST /jobs` needs no ACL record then.",
    )
    exec_auth_follows: bool = declare(
        False, FLAG, "GD", "EXEC_AUTH was not set and is what PYOCO_HTTP_AUTH_MODE says.", has_variable=False
    )
    exec_operator_keys: tuple[str, ...] = _own(
        (), KEY_IDS, "G", "Ids of API keys that may read and change ACL records and see all jobs and events."
    )
    exec_cluster_secret: str = _own(
        "",
        SECRET_OR_NONE,
        "D",
        "Shared secret of the NATS nodes that `leader --role auto --peers` starts; the same on each machine.",
        secret=True,
    )
    exec_tls_bind_cn: bool = _own(False, FLAG, "D", "Whether a certificate must contain the id of the Hello.")

    # Workers of programs.
    exec_dir: str = _own("/opt/grid/exe", PATH, "P", "Directory of the programs.")
    work_root: str = _own("/tmp/jobs", PATH, "P", "Directory of job directories.")  # noqa: S108 - the contract's
    worker_exec_allow: tuple[str, ...] = _own(("*",), GLOBS, "P", "Patterns of program names that may be run.")
    worker_env_pass: tuple[str, ...] = _own((), VARIABLES, "P", "Environment variables passed to programs.")
    worker_keep_jobs: bool = _own(False, FLAG, "P", "Whether job directories are kept.")
    worker_max_par: int = _own(4, integer(1, 10_000), "P", "Concurrent programs.")
    worker_cpu_cap: float = _own(CPU_CAP_DEFAULT, CPU_CAP, "P", "Above this CPU usage no more work is requested.")
    worker_dedup_ttl_sec: float = _own(
        600.0,
        INTERVAL,
        "P",
        "How long a worker remembers completed jobs, to detect duplicates.",
        audience=Audience.EXISTING,
    )
    worker_spool_max_bytes: int = _own(
        2 * _GIB, integer(_MIB, 2**50), "P", "Maximum size of results that no door has accepted yet, in bytes."
    )
    worker_orphan_sec: float = _own(
        600.0,
        INTERVAL,
        "P",
        "Without any door for this time, running programs are terminated.",
        audience=Audience.EXISTING,
    )
    worker_drain_sec: float = _own(30.0, INTERVAL, "P", "On SIGTERM, running programs may finish within this time.")
    worker_heartbeat_sec: float = _own(
        5.0, INTERVAL, "P", "Time between heartbeats while a program runs.", has_variable=False
    )
    worker_cpu_wait_sec: float = _own(
        30.0, INTERVAL, "P", "A busy machine requests work again after this time anyway.", audience=Audience.EXISTING
    )

    # Clients over TCP.
    client_desired_par: int = _own(4, integer(1, 10_000), "F", "Concurrent jobs that a client requests.")
    clientx_grace_sec: float = _own(
        10.0, INTERVAL, "F", "A lost group has this time to reconnect.", audience=Audience.EXISTING
    )

    # Names in JetStream.
    exec_stream: str = declare("PYOCO_EXEC", NAME, "GDPK", "Stream of queued jobs.", has_variable=False)
    exec_events_stream: str = declare("PYOCO_EXEC_EVENTS", NAME, "GDPK", "Stream of events.", has_variable=False)
    exec_artifacts_bucket: str = declare("pyoco_artifacts", NAME, "GDPK", "Object store.", has_variable=False)

    def __post_init__(self) -> None:
        check_all(self)
        if 3 * self.exec_run_heartbeat_sec > self.exec_lease_fresh_sec:  # GRID-56
            raise SettingError(
                f"EXEC_RUN_HEARTBEAT_SEC={written(self.exec_run_heartbeat_sec)} must be at most a third of "
                f"EXEC_LEASE_FRESH_SEC={written(self.exec_lease_fresh_sec)}; "
                f"example: EXEC_RUN_HEARTBEAT_SEC={written(self.exec_lease_fresh_sec / 4)}"
            )

    def check_ack_wait(self, ack_wait_seconds: float) -> None:
        """GRID-56: a lease must be recognized as stale before the queue redelivers. Raises SettingError."""
        if self.exec_lease_fresh_sec >= ack_wait_seconds:
            raise SettingError(
                f"EXEC_LEASE_FRESH_SEC={written(self.exec_lease_fresh_sec)} must be below "
                f"{_ACK_WAIT}={written(ack_wait_seconds)}; "
                f"example: EXEC_LEASE_FRESH_SEC={written(ack_wait_seconds * 2 / 3)}"
            )

    @classmethod
    def read(cls, variables: Mapping[str, str], **overrides: object) -> Self:
        """Read the settings from these variables. Unset lease times follow from the AckWait. Raises SettingError."""
        values = values_in(variables, cls)
        values |= {name: value for name, value in overrides.items() if value is not None}
        leases = _leases(variables.get(_ACK_WAIT, ""), values.get("exec_lease_fresh_sec"))
        auth = {} if "exec_auth" in values else _auth(variables.get(_HTTP_AUTH, ""))
        return cls(**leases | auth | values)

    def at_gateway(self) -> Self:
        """The same for a gateway, where PYOCO_HTTP_AUTH_MODE decides about keys: an ACL record is needed only where
        EXEC_AUTH itself was set. Without one, a key may submit as any client of its own tenant."""
        return replace(self, exec_auth="none", exec_auth_follows=False) if self.exec_auth_follows else self


def _auth(http_auth_mode: str) -> dict[str, Any]:
    """SAFE-4: doors ask for keys where HTTP does, unless EXEC_AUTH is set. A wrong mode is reported by its own
    setting."""
    is_closed = http_auth_mode.strip().casefold() == "api_key"
    return {"exec_auth": "api_key", "exec_auth_follows": True} if is_closed else {}


def _leases(ack_wait: str, lease_seconds: float | None) -> dict[str, float]:
    """Return the defaults of the lease times.

    They are those of the contract, unless an AckWait set before programs existed requires shorter ones (GRID-56). An
    invalid AckWait is ignored here; the setting's owner reports it.
    """
    if lease_seconds is None:
        try:
            fitting = float(ack_wait) * 2 / 3
        except ValueError:
            fitting = 0.0
        lease_seconds = min(_LEASE_SECONDS, fitting) if fitting > 0 else _LEASE_SECONDS
    return {"exec_lease_fresh_sec": lease_seconds, "exec_run_heartbeat_sec": min(_HEARTBEAT_SECONDS, lease_seconds / 4)}
