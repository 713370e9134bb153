"""The settings of flows, of NATS and of the gateway: those that every process reads."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

from pyoco_server.config.environment import with_dotenv
from pyoco_server.config.settings import (
    AGE,
    BYTES,
    COUNT,
    FILE,
    FLAG,
    HEADER,
    HOSTS,
    INDEX,
    INT64_MAX,
    INTERVAL,
    MESSAGE_BYTES,
    MODULES,
    NAME,
    PATH,
    PEPPER,
    RESOLVER,
    SECONDS_OR_NONE,
    SUBJECT,
    SYNC,
    TAG,
    URL,
    USER,
    Audience,
    Setting,
    check_all,
    check_apart,
    choice,
    declare,
    hidden_settings,
    integer,
    settings,
    written,
)
from pyoco_server.errors import SettingError

__all__ = ["NatsBackendConfig"]


@dataclass(frozen=True, kw_only=True)
class NatsBackendConfig:
    """The settings of a backend (FLOW-386). Wrong values raise SettingError, a ValueError that names the variable."""

    # The address of NATS, and the names of our resources in it.
    nats_url: str = declare(
        "nats://127.0.0.1:4222",
        URL,
        "GWKA",
        "Address of NATS; several separated by commas. `memory://name` is for tests in one process; nothing survives "
        "the process, and commands refuse it.",
        secret=True,
    )
    nats_user: str = declare("", USER, "GWKADP", "NATS user of this process; needs a password file.")
    nats_password_file: str = declare(
        "", FILE, "GWKADP", "File with that user's password, one line; read again at each connection."
    )
    nats_creds: str = declare("", FILE, "GWKADP", "Credentials file (`.creds`) instead of user and password.")
    nats_tls_ca: str = declare(
        "", FILE, "GWKADP", "CA certificates that verify NATS, PEM; if set, a NATS without TLS is refused."
    )
    nats_tls_cert: str = declare("", FILE, "GWKADP", "Client certificate for NATS, PEM; needs its key.")
    nats_tls_key: str = declare("", FILE, "GWKADP", "Key of that certificate, PEM, without a password.")
    nats_inbox_prefix: str = declare(
        "_INBOX",
        SUBJECT,
        "GWKADP",
        "Prefix of reply subjects; a different one for each role if permissions are separated.",
    )
    jetstream_replicas: int = declare(1, integer(1, 5), "GWKA", "Copies of each stream and bucket that we create.")
    nats_sync: str = declare(
        "1s", SYNC, "U", "How often the embedded NATS syncs to disk: a time such as `500ms`, or `always`."
    )
    data_dir: str = declare(".pyoco", PATH, "GKU", "Directory for local data of a process.")
    work_stream: str = declare("PYOCO_WORK", NAME, "GWK", "Stream of jobs.", has_variable=False)
    work_subject_prefix: str = declare(
        "pyoco.work", SUBJECT, "GWK", "Prefix of job subjects.", audience=Audience.EXISTING
    )
    default_tag: str = declare("default", TAG, "GW", "Tag of submissions and workers without a tag.")
    runs_kv_bucket: str = declare("pyoco_runs", NAME, "GWK", "Bucket of run snapshots.", audience=Audience.EXISTING)
    workers_kv_bucket: str = declare(
        "pyoco_workers", NAME, "GWK", "Bucket of the worker registry.", audience=Audience.EXISTING
    )
    workers_kv_ttl_sec: float = declare(
        15.0,
        INTERVAL,
        "GWK",
        "Records of workers are kept for `PYOCO_WORKERS_RETENTION_SEC`.",
        audience=Audience.NOBODY,
    )  # FLOW-194

    # Runs and workers.
    runs_retention_sec: float = declare(
        2_592_000.0, SECONDS_OR_NONE, "GWK", "Ended runs are removed after this time; 0 = never."
    )
    run_timeout_sec: float = declare(0.0, SECONDS_OR_NONE, "W", "The longest time for a try of a run; 0 = no limit.")
    abandon_after_sec: float = declare(
        120.0,
        INTERVAL,
        "K",
        "A run without a queued job is ended after this time without a heartbeat.",
        has_variable=False,
    )
    run_heartbeat_interval_sec: float = declare(
        1.0, INTERVAL, "WK", "Time between heartbeats of a run.", audience=Audience.EXISTING
    )
    worker_heartbeat_interval_sec: float = declare(
        5.0, INTERVAL, "W", "Time between heartbeats of a worker.", audience=Audience.EXISTING
    )
    worker_disconnect_timeout_sec: float = declare(
        20.0,
        INTERVAL,
        "GWK",
        "A worker without heartbeats for longer counts as disconnected.",
        audience=Audience.EXISTING,
    )
    workers_retention_sec: float = declare(
        604_800.0,
        SECONDS_OR_NONE,
        "K",
        "Workers without heartbeats for longer are removed from the registry; 0 = never.",
        audience=Audience.EXISTING,
    )
    flow_resolver: str = declare("", RESOLVER, "WU", "Where workers find flows by name, as `module:callable`.")
    worker_slots: int = declare(0, integer(0, 4096), "W", "Concurrent runs of a worker; 0 = number of CPUs.")
    cancel_grace_period_sec: float = declare(
        30.0,
        SECONDS_OR_NONE,
        "GW",
        "Time for a cancelled run to stop by itself before it is killed, unless the cancel request names it.",
    )
    drain_timeout_sec: float = declare(
        0.0, SECONDS_OR_NONE, "W", "Time for running runs to finish when a worker stops; 0 = unlimited."
    )
    host_memory_max_bytes: int = declare(
        0, integer(0, INT64_MAX), "W", "Memory a host process may use; 0 = 80 % of the machine's or the cgroup's."
    )
    host_runs_max: int = declare(
        10_000, COUNT, "W", "A host process is replaced after this many runs.", has_variable=False
    )
    health_port: int = declare(
        0, integer(0, 65_535), "WK", "Port on which a worker or keeper serves `/healthz` and `/readyz`; 0 = none."
    )
    health_host: str = declare("127.0.0.1", PATH, "WK", "Address of that port.")
    callable_allow: tuple[str, ...] = declare(
        (), MODULES, "W", "Additional modules that a `flow.yaml` may call, separated by commas or spaces."
    )

    # Consumers and dead letters.
    consumer_ack_wait_sec: float = declare(
        30.0,
        INTERVAL,
        "GWKDP",
        "AckWait of a consumer that we create. Must be the same for all processes: leases depend on it.",
        audience=Audience.EXISTING,
    )
    consumer_max_deliver: int = declare(20, COUNT, "W", "MaxDeliver of a consumer that we create.")
    consumer_max_ack_pending: int = declare(
        200, COUNT, "W", "MaxAckPending of a consumer that we create.", audience=Audience.EXISTING
    )
    ack_progress_interval_sec: float = declare(
        10.0,
        INTERVAL,
        "W",
        "Time between in-progress acks; below AckWait, half of it is a good choice.",
        audience=Audience.EXISTING,
    )
    dlq_stream: str = declare("PYOCO_DLQ", NAME, "GWK", "Stream of dead letters.", audience=Audience.EXISTING)
    dlq_subject_prefix: str = declare(
        "pyoco.dlq", SUBJECT, "GWK", "Prefix of dead-letter subjects.", audience=Audience.EXISTING
    )
    dlq_publish_execution_error: bool = declare(True, FLAG, "W", "Failed executions create a dead letter, too.")
    dlq_max_age_sec: float = declare(604_800.0, AGE, "GWK", "Dead letters are removed after this time.")
    dlq_max_msgs: int = declare(
        100_000,
        BYTES,
        "GWK",
        "Maximum number of dead letters; the oldest are removed first.",
        audience=Audience.EXISTING,
    )
    dlq_max_bytes: int = declare(536_870_912, BYTES, "GWK", "Maximum size of all dead letters in bytes.")

    advisory_stream: str = declare(
        "PYOCO_ADVISORIES",
        NAME,
        "GWK",
        "Stream of notices about jobs that were delivered too often.",
        has_variable=False,
    )

    # Delays.
    clock_stream: str = declare(
        "PYOCO_CLOCK", NAME, "GWK", "Stream of the alarms of delayed runs and schedules.", has_variable=False
    )
    delay_max_sec: float = declare(
        31_622_400.0, SECONDS_OR_NONE, "G", "A run may be delayed by at most this time; 0 = not at all."
    )

    # Schedules.
    schedules_kv_bucket: str = declare("pyoco_schedules", NAME, "GWK", "Bucket of schedules.", has_variable=False)
    schedules_max: int = declare(1000, integer(0, 100_000), "G", "Schedules that one tenant may have.")
    schedule_grace_sec: float = declare(
        5.0, INTERVAL, "K", "A tick that is handled more than this late is missed: `catch_up` decides."
    )
    schedule_history: int = declare(1000, integer(100, 10_000), "GK", "Entries kept of the history of each schedule.")

    # Logs of runs.
    logs_enabled: bool = declare(True, FLAG, "GWKDP", "What runs print is captured and stored.")
    logs_stream: str = declare("PYOCO_LOGS", NAME, "GWKDP", "Stream of log lines.", audience=Audience.EXISTING)
    logs_level: str = declare(
        "INFO", choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "W", "Least level of `logging` records."
    )
    logs_line_max_bytes: int = declare(
        16_384, integer(256, 131_072), "WDP", "A longer line is cut.", audience=Audience.EXISTING
    )
    logs_run_head_bytes: int = declare(
        1_048_576, integer(0, 2**30), "WDP", "Kept of the beginning of each attempt; the middle is left out."
    )
    logs_run_tail_bytes: int = declare(7_340_032, integer(4096, 2**30), "WDP", "Kept of the end of each attempt.")
    logs_buffer_bytes: int = declare(
        4_194_304,
        integer(65_536, 2**30),
        "WDP",
        "Lines of a run that a worker keeps while NATS, or its door, is unreachable.",
        audience=Audience.EXISTING,
    )
    logs_max_age_sec: float = declare(2_592_000.0, AGE, "GWKDP", "Log lines are removed after this time.")
    logs_max_bytes: int = declare(
        2_147_483_648, BYTES, "GWKDP", "Maximum size of all log lines in bytes; the oldest are removed first."
    )

    # Submissions and their idempotency keys.
    receipts_kv_bucket: str = declare("pyoco_receipts", NAME, "GWK", "Bucket of idempotency keys.", has_variable=False)
    idempotency_ttl_sec: float = declare(86_400.0, AGE, "GWK", "An idempotency key is remembered for this time.")
    workflow_object_store_bucket: str = declare(
        "pyoco_workflows", NAME, "GWK", "Object store of submitted `flow.yaml` files, for re-runs.", has_variable=False
    )

    # Results and outputs of runs.
    result_inline_max_bytes: int = declare(
        16_384,
        MESSAGE_BYTES,
        "GW",
        "A result or output up to this size is kept in the record of its run.",
        audience=Audience.EXISTING,
    )
    output_max_bytes: int = declare(1_073_741_824, BYTES, "W", "A larger output of a task is not kept.")
    run_outputs_max_bytes: int = declare(4_294_967_296, BYTES, "W", "What one run may keep outside of its record.")
    tenant_outputs_max_bytes: int = declare(
        68_719_476_736,
        integer(0, 2**62),
        "W",
        "What the runs of one tenant may keep outside of their records; 0 = no bound.",
    )

    # Sizes and wheels.
    max_run_snapshot_bytes: int = declare(
        262_144, MESSAGE_BYTES, "GWK", "A larger snapshot is compacted.", audience=Audience.EXISTING
    )
    workflow_yaml_max_bytes: int = declare(
        262_144, MESSAGE_BYTES, "GW", "A larger `flow.yaml` is refused.", audience=Audience.EXISTING
    )
    wheel_object_store_bucket: str = declare(
        "pyoco_wheels", NAME, "GW", "Object store of wheels.", audience=Audience.EXISTING
    )
    wheel_max_bytes: int = declare(536_870_912, BYTES, "G", "A larger wheel is refused.")
    wheel_sync_enabled: bool = declare(False, FLAG, "W", "Workers install the wheels in the registry.")
    wheel_sync_dir: str = declare(".pyoco/wheels", PATH, "W", "Directory of a worker's wheels.")
    wheel_sync_interval_sec: float = declare(
        10.0, INTERVAL, "W", "Time between scans of the wheel registry.", audience=Audience.EXISTING
    )
    wheel_install_timeout_sec: float = declare(
        180.0, INTERVAL, "W", "Time one installation of wheels may take.", audience=Audience.EXISTING
    )
    wheel_unpacked_max_bytes: int = declare(
        0,
        integer(0, 2**62),
        "G",
        "A wheel that unpacks to more is refused; 0 = eight times the limit of a wheel.",
        has_variable=False,
    )
    wheel_index: str = declare(
        "none",
        INDEX,
        "W",
        "Where pip may fetch the requirements of a wheel: `none`, `default` (as pip is set up) or the URL of an index.",
        secret=True,
    )
    wheel_history_kv_bucket: str = declare(
        "pyoco_wheel_history", NAME, "G", "Bucket of the wheel history.", audience=Audience.EXISTING
    )
    wheel_history_ttl_sec: float = declare(
        7_776_000.0, AGE, "G", "The wheel history is kept for this time.", audience=Audience.EXISTING
    )

    # Access and display.
    http_auth_mode: Literal["none", "api_key"] = declare(
        "none",
        choice("none", "api_key"),
        "G",
        (
            "`api_key`: every request needs a key. `none`: open to everyone except for priced runs and budgets; a "
            "valid key counts as with `api_key`, any other is ignored."
        ),
    )
    http_api_key_header: str = declare(
        "X-API-Key", HEADER, "GC", "Header that carries the API key.", audience=Audience.EXISTING
    )
    http_hosts: tuple[str, ...] = declare(
        (),
        HOSTS,
        "GU",
        "Accepted `Host` names besides `localhost` and IP addresses, separated by commas; unset or `*` = any. "
        "If unset, `pyoco-server up` on a loopback address accepts no others.",
    )
    auth_kv_bucket: str = declare("pyoco_auth", NAME, "GA", "Bucket of API key records.", audience=Audience.EXISTING)
    auth_pepper: str = declare(
        "", PEPPER, "GA", "Secret mixed into the hashes of API keys; keep it from workers.", secret=True
    )
    dashboard_lang: Literal["auto", "ja", "en"] = declare(
        "auto",
        choice("auto", "ja", "en"),
        "G",
        "Language of the dashboard. `auto`: that of the gateway's locale (`LC_ALL`, `LC_MESSAGES`, `LANG`).",
        lenient=True,
    )
    dashboard_read_only: bool = declare(
        False,
        FLAG,
        "G",
        "The dashboard is read-only; changes from any browser are refused, those of programs are not.",
    )

    def __post_init__(self) -> None:
        check_all(self)
        if self.ack_progress_interval_sec >= self.consumer_ack_wait_sec:  # FLOW-313
            raise SettingError(
                f"PYOCO_ACK_PROGRESS_INTERVAL_SEC={written(self.ack_progress_interval_sec)} must be below "
                f"PYOCO_CONSUMER_ACK_WAIT_SEC={written(self.consumer_ack_wait_sec)}; "
                f"example: PYOCO_ACK_PROGRESS_INTERVAL_SEC={written(self.consumer_ack_wait_sec / 2)}"
            )
        # Shared names would mix two kinds of records, and NATS refuses streams with overlapping subjects.
        check_apart(self, "work_stream", "dlq_stream", "advisory_stream", "clock_stream")
        check_apart(
            self,
            "runs_kv_bucket",
            "workers_kv_bucket",
            "wheel_history_kv_bucket",
            "auth_kv_bucket",
            "receipts_kv_bucket",
            "schedules_kv_bucket",
        )
        check_apart(self, "wheel_object_store_bucket", "workflow_object_store_bucket")
        if self.outputs_bucket in (self.wheel_object_store_bucket, self.workflow_object_store_bucket):
            raise SettingError(
                f"{self.outputs_bucket} is the object store of outputs; use another name for other files"
            )
        check_apart(self, "work_subject_prefix", "dlq_subject_prefix")

    @property
    def outputs_bucket(self) -> str:
        """The object store of results and outputs. Deployments that share a NATS differ in their bucket of runs."""
        return "pyoco_outputs" if self.runs_kv_bucket == "pyoco_runs" else f"{self.runs_kv_bucket}_outputs"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Self:
        """Read the environment, after the dotenv file (FLOW-387). `overrides` are command-line options; None means
        unset.

        Without `environ` the file's variables are also set in `os.environ`, for the engine and for child processes.
        """
        variables = with_dotenv(environ)
        given = {name: value for name, value in overrides.items() if value is not None}
        values = hidden_settings(variables, cls)
        for setting in settings(cls):
            value = given.pop(setting.name, None)
            if isinstance(value, str):
                values[setting.name] = setting.read(value)
            elif value is not None:
                values[setting.name] = value
            elif setting.has_variable and setting.variable in variables:
                values[setting.name] = _from_variable(setting, variables[setting.variable])
        return cls(**values, **cast("dict[str, Any]", given))

    @property
    def unpacked_wheel_bytes_max(self) -> int:
        return self.wheel_unpacked_max_bytes or 8 * self.wheel_max_bytes

    @property
    def slots(self) -> int:
        """Concurrent runs of a worker: `PYOCO_WORKER_SLOTS`, by default the number of CPUs this process may use."""
        return self.worker_slots or _cpu_count()

    def language(self, environ: Mapping[str, str] | None = None) -> Literal["ja", "en"]:
        """The dashboard's language (FLOW-254, FLOW-256)."""
        if self.dashboard_lang != "auto":
            return self.dashboard_lang
        variables = os.environ if environ is None else environ
        locale = next(filter(None, map(variables.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
        return "ja" if re.split(r"[_.@-]", locale.lower())[0] in {"ja", "japanese"} else "en"


def _from_variable(setting: Setting, text: str) -> object:
    try:
        return setting.read(text)
    except SettingError as error:
        if not setting.lenient:
            raise
        logging.getLogger(__name__).warning("%s; using %s", error, written(setting.default))  # FLOW-257
        return setting.default


def _cpu_count() -> int:
    if hasattr(os, "process_cpu_count"):  # Python 3.13; respects PYTHON_CPU_COUNT
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
