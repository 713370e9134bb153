"""Handshake and connection messages: Hello, credits, refusals, heartbeats (sections 5.1, 5.2 and 5.5 to 5.9)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pyoco_server.core.frames.codec import LENGTH_MAX, SUBJECT_BYTES_MAX
from pyoco_server.core.frames.reading import Fields, bad_field, write_object
from pyoco_server.core.frames.subjects import PATTERNS_MAX, check_pattern
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import check_client_id, check_exec_name, read_job_id

__all__ = [
    "CAP_DEFAULT",
    "CAP_MAX",
    "CREDIT_MAX",
    "LOGS",
    "PROGRAMS_MAX",
    "TOKEN_CHARACTERS_MAX",
    "CreditGrant",
    "ErrorMessage",
    "Heartbeat",
    "HelloAck",
    "HelloClient",
    "HelloWorker",
    "NotLeader",
    "RunningJob",
    "without_none",
]

CAP_DEFAULT: Final = 4
#: A larger cap is lowered to this.
CAP_MAX: Final = 10_000
CREDIT_MAX: Final = 10_000
#: The maximum number of attempts a worker holds: those it executes, and as many that wait for a slot (GRID-105).
_RUNNING_MAX = 20_000
#: The maximum number of names in one announcement of programs. A worker with more of them announces none.
PROGRAMS_MAX: Final = 10_000
#: The capability to send LogChunks, and to take them (LOG-30).
LOGS: Final = "logs"
_CAPABILITIES_MAX = 100
_EXEC_NAME_MAX = 64
_GLOBS_MAX = 1_000
#: The token of an attempt: a UUID.
TOKEN_CHARACTERS_MAX: Final = 64
_AGENT_MAX = 128
_KEY_MAX = 512
_MESSAGE_MAX = 512
_ADDRESS_MAX = 300
_DOORS_MAX = 1_000
_HOURS = 86_400_000
_REASONS = ("draining", "standby", "no_quorum")

_CREDIT = struct.Struct("<i")


def without_none(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _as_hello(error: GridRefused) -> GridRefused:
    """Turn any error in a Hello into BAD_HELLO (section 26.1)."""
    return GridRefused(Code.BAD_HELLO, error.message, field=error.field)


@dataclass(frozen=True, kw_only=True)
class HelloClient:
    """A client identifies itself and requests a cap for its jobs."""

    client_id: str
    desired_parallelism: int = CAP_DEFAULT
    #: The API key.
    token: str | None = field(default=None, repr=False)
    agent: str | None = None

    def to_payload(self) -> bytes:
        members = {"ClientId": self.client_id, "DesiredParallelism": self.desired_parallelism}
        return write_object(without_none(members | {"Token": self.token, "Agent": self.agent}))

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. A cap above the limit is lowered to it. Raises GridRefused: BAD_HELLO for any error."""
        try:
            fields = Fields.of(payload)
            cap = fields.integer_or_none("DesiredParallelism", 1)
            return cls(
                client_id=check_client_id(fields.text("ClientId")),
                desired_parallelism=CAP_DEFAULT if cap is None else min(cap, CAP_MAX),
                token=fields.text_or_none("Token", _KEY_MAX),
                agent=fields.text_or_none("Agent", _AGENT_MAX),
            )
        except GridRefused as error:
            raise _as_hello(error) from None


@dataclass(frozen=True, kw_only=True)
class HelloWorker:
    """A worker identifies itself and names the programs it takes."""

    worker_id: str
    #: 1 to 32, each of them valid (`check_pattern`).
    patterns: tuple[str, ...]
    #: For display only; credits control how many jobs it receives.
    max_parallel: int | None = None
    token: str | None = field(default=None, repr=False)
    agent: str | None = None
    #: The programs that it has and may run (FIND-14). None: not reported.
    programs: tuple[str, ...] | None = None
    #: Patterns of the programs that it may run. None: all.
    allow: tuple[str, ...] | None = None
    #: What it can do beyond the first version of the protocol. Unknown ones are ignored.
    capabilities: tuple[str, ...] = ()

    def to_payload(self) -> bytes:
        members = {
            "WorkerId": self.worker_id,
            "Pattern": self.patterns[0] if len(self.patterns) == 1 else list(self.patterns),
            "MaxParallel": self.max_parallel,
            "Token": self.token,
            "Agent": self.agent,
            "Programs": _list_or_none(self.programs),
            "Allow": _list_or_none(self.allow),
            "Capabilities": list(self.capabilities) or None,
        }
        return write_object(without_none(members))

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused: BAD_HELLO for any error."""
        try:
            fields = Fields.of(payload)
            return cls(
                worker_id=check_client_id(fields.text("WorkerId"), "WorkerId"),
                patterns=_patterns(fields),
                max_parallel=fields.integer_or_none("MaxParallel", 1, CAP_MAX),
                token=fields.text_or_none("Token", _KEY_MAX),
                agent=fields.text_or_none("Agent", _AGENT_MAX),
                programs=_programs(fields),
                allow=None if fields.get("Allow") is None else fields.texts("Allow", _GLOBS_MAX, _EXEC_NAME_MAX),
                capabilities=_capabilities(fields),
            )
        except GridRefused as error:
            raise _as_hello(error) from None


def _list_or_none(words: tuple[str, ...] | None) -> list[str] | None:
    return None if words is None else list(words)


def _programs(fields: Fields) -> tuple[str, ...] | None:
    if fields.get("Programs") is None:
        return None
    return tuple(map(check_exec_name, fields.texts("Programs", PROGRAMS_MAX, _EXEC_NAME_MAX)))


def _capabilities(fields: Fields) -> tuple[str, ...]:
    if fields.get("Capabilities") is None:
        return ()
    return fields.texts("Capabilities", _CAPABILITIES_MAX, _EXEC_NAME_MAX)


def _patterns(fields: Fields) -> tuple[str, ...]:
    if isinstance(fields.get("Pattern"), list):
        patterns = fields.texts("Pattern", PATTERNS_MAX, SUBJECT_BYTES_MAX)
    else:
        patterns = (fields.text("Pattern", SUBJECT_BYTES_MAX),)
    if not patterns:
        raise bad_field("Pattern", "needs at least one pattern")
    for pattern in patterns:
        check_pattern(pattern)
    return patterns


@dataclass(frozen=True, kw_only=True)
class HelloAck:
    """A door accepted a Hello."""

    door_id: str
    group: str
    session: str
    #: The effective cap of a client; None for a worker.
    cap: int | None = None
    #: Doors of the same group, as `host:port`.
    doors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    max_frame: int = LENGTH_MAX
    heartbeat_sec: float = 15
    #: Those of the worker's capabilities that the door supports.
    capabilities: tuple[str, ...] = ()
    #: How many LogChunks may be unanswered.
    log_credits: int = 0

    def to_payload(self) -> bytes:
        members: dict[str, Any] = {
            "DoorId": self.door_id,
            "Group": self.group,
            "Session": self.session,
            "MaxFrame": self.max_frame,
            "HeartbeatSec": self.heartbeat_sec,
            "Cap": self.cap,
            "Doors": list(self.doors),
            "Warnings": list(self.warnings),
        }
        if self.capabilities:
            members |= {"Capabilities": list(self.capabilities), "LogCredits": self.log_credits}
        return write_object(members)

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused."""
        fields = Fields.of(payload)
        heartbeat = fields.number_or_none("HeartbeatSec", 0, _HOURS)
        return cls(
            door_id=fields.text("DoorId"),
            group=fields.text("Group"),
            session=fields.text("Session"),
            cap=fields.integer_or_none("Cap", 0),
            doors=fields.texts("Doors", _DOORS_MAX, _ADDRESS_MAX),
            warnings=fields.texts("Warnings"),
            max_frame=fields.integer("MaxFrame", 1),
            heartbeat_sec=15 if heartbeat is None else heartbeat,
            capabilities=_capabilities(fields),
            log_credits=fields.integer_or_none("LogCredits", 0, CREDIT_MAX) or 0,
        )


@dataclass(frozen=True)
class CreditGrant:
    """A worker has room for this many more jobs."""

    count: int

    def to_payload(self) -> bytes:
        return _CREDIT.pack(self.count)

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload (GRID-25). Raises GridRefused: BAD_CREDIT."""
        if len(payload) != _CREDIT.size:
            raise GridRefused(Code.BAD_CREDIT, f"a credit has {_CREDIT.size} bytes")
        (count,) = _CREDIT.unpack(payload)
        if not 1 <= count <= CREDIT_MAX:
            raise GridRefused(Code.BAD_CREDIT, f"a credit is from 1 to {CREDIT_MAX}")
        return cls(count)


@dataclass(frozen=True, kw_only=True)
class NotLeader:
    """This door does not accept the request."""

    #: `draining`, `standby` or `no_quorum`.
    reason: str
    group: str
    #: The address to use next; None: stay connected, and retry after `retry_after_ms`.
    leader: str | None = None
    doors: tuple[str, ...] = ()
    retry_after_ms: int = 1_000

    def to_payload(self) -> bytes:
        return write_object(
            {
                "Reason": self.reason,
                "Leader": self.leader,
                "Doors": list(self.doors),
                "RetryAfterMs": self.retry_after_ms,
                "Group": self.group,
            }
        )

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused."""
        fields = Fields.of(payload)
        reason = fields.text("Reason")
        if reason not in _REASONS:
            raise bad_field("Reason", f"must be one of {', '.join(_REASONS)}")
        return cls(
            reason=reason,
            group=fields.text("Group"),
            leader=fields.text_or_none("Leader", _ADDRESS_MAX),
            doors=fields.texts("Doors", _DOORS_MAX, _ADDRESS_MAX),
            retry_after_ms=fields.integer("RetryAfterMs", 0, _HOURS),
        )


@dataclass(frozen=True, kw_only=True)
class ErrorMessage:
    """A door refused a frame or the connection."""

    #: A `Code`; a newer door may send others.
    code: str
    message: str
    job_id: str | None = None
    retry: bool = False
    retry_after_ms: int | None = None

    @classmethod
    def of(cls, refused: GridRefused) -> Self:
        facts = refused.facts
        line = " ".join(refused.message.split())[:_MESSAGE_MAX]
        return cls(
            code=refused.code,
            message=line,
            job_id=refused.job_id,
            retry=facts.retry,
            retry_after_ms=facts.retry_after_ms,
        )

    def to_payload(self) -> bytes:
        return write_object(
            {
                "Code": self.code,
                "Message": self.message,
                "JobId": self.job_id,
                "Retry": self.retry,
                "RetryAfterMs": self.retry_after_ms,
            }
        )

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused."""
        fields = Fields.of(payload)
        return cls(
            code=fields.text("Code", _AGENT_MAX),
            message=fields.text("Message", _MESSAGE_MAX),
            job_id=None if fields.get("JobId") is None else read_job_id(fields.text("JobId")),
            retry=fields.flag("Retry"),
            retry_after_ms=fields.integer_or_none("RetryAfterMs", 0, _HOURS),
        )


@dataclass(frozen=True)
class RunningJob:
    """An attempt that a worker holds."""

    job_id: str
    token: str = field(repr=False)


@dataclass(frozen=True)
class Heartbeat:
    """A heartbeat of the connection, and of a worker's attempts. An empty payload means that nothing is running."""

    running: tuple[RunningJob, ...] = ()
    #: CPU usage of the machine as a share, 0 to 1.
    cpu: float | None = None
    #: The programs that it has now, if they changed (FIND-14). None: unchanged.
    programs: tuple[str, ...] | None = None

    def to_payload(self) -> bytes:
        if not self.running and self.cpu is None and self.programs is None:
            return b""
        running = [{"JobId": each.job_id, "Token": each.token} for each in self.running]
        programs = _list_or_none(self.programs)
        return write_object(without_none({"Running": running, "Cpu": self.cpu, "Programs": programs}))

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused."""
        if not payload:
            return cls()
        fields = Fields.of(payload)
        running = tuple(
            RunningJob(read_job_id(each.text("JobId")), each.text("Token", TOKEN_CHARACTERS_MAX))
            for each in fields.objects("Running", _RUNNING_MAX)
        )
        return cls(running, fields.number_or_none("Cpu", 0, 1), _programs(fields))
