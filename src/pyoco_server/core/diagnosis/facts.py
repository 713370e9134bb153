"""What is known of a deployment at one moment. A fact that could not be had is a value, too: Unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from pyoco_server.core.run import Run
from pyoco_server.core.worker_record import WorkerRecord

if TYPE_CHECKING:
    from pyoco_server.core.diagnosis.priced_facts import PricedFacts

__all__ = [
    "MISSING",
    "Account",
    "Disk",
    "Facts",
    "Found",
    "Gateway",
    "Keeper",
    "Machine",
    "Missing",
    "Monitor",
    "Off",
    "Orphans",
    "OwnNats",
    "Packs",
    "Peer",
    "Queue",
    "Server",
    "Stream",
    "TagQueue",
    "Trouble",
    "Unknown",
    "Unreachable",
    "Unreadable",
    "Wishes",
    "Workers",
]


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be had."""

    why: str


class Trouble(Enum):
    """Why there is no connection."""

    NOBODY_ANSWERS = "nobody answers"
    LOGIN_REFUSED = "login refused"
    TLS_FAILED = "tls failed"


@dataclass(frozen=True)
class Unreachable:
    """There is no connection to NATS, and so nothing else is known of it."""

    trouble: Trouble
    why: str


@dataclass(frozen=True, kw_only=True)
class Server:
    """The NATS server that answers, by its own word."""

    name: str
    version: str
    round_trip_seconds: float
    payload_bytes_max: int
    #: The address it listens on; empty: it does not tell.
    listens_on: str
    wants_login: bool
    wants_tls: bool
    #: The cluster it belongs to; empty: it stands alone.
    cluster: str


@dataclass(frozen=True)
class Off:
    """NATS answers, and JetStream does not."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Account:
    """What our account uses of JetStream, and what it may use; None: no limit of its own."""

    storage_bytes: int
    storage_bytes_max: int | None
    memory_bytes: int
    memory_bytes_max: int | None
    streams: int
    streams_max: int | None
    consumers: int
    consumers_max: int | None
    #: A stream can be made only with a limit of bytes, and ours have none.
    wants_stream_limits: bool = False


@dataclass(frozen=True)
class Peer:
    """Another node that holds a copy of a stream."""

    name: str
    is_current: bool
    is_offline: bool
    #: How many writes it is behind.
    lag: int
    #: Since it was last heard of.
    silent_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """A stream as it is."""

    settings: Mapping[str, Any]
    messages: int = 0
    size_bytes: int = 0
    #: When the oldest and the newest message were stored; None: there is none.
    first_at: float | None = None
    last_at: float | None = None
    #: Empty: nobody leads it, and nothing can be read or written.
    leader: str = ""
    peers: tuple[Peer, ...] = ()


class Missing:
    """There is no such stream."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(frozen=True)
class Stream:
    """One of our streams, buckets or object stores: as we would make it, and as it is."""

    name: str
    wanted: Mapping[str, Any]
    state: Found | Missing | Unknown


@dataclass(frozen=True, kw_only=True)
class TagQueue:
    """The consumer through which the workers of one tag get their jobs."""

    tag: str
    #: Jobs that were never delivered.
    waiting: int
    #: Jobs that were delivered and not answered for yet.
    in_hand: int
    #: Of those in hand, how many were delivered before.
    repeated: int
    #: Requests for work that are parked here now.
    pulls: int
    ack_wait_seconds: float
    #: 0: there is no limit.
    max_deliver: int
    in_hand_max: int
    is_paused: bool = False


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The stream of jobs, by tag."""

    lanes: tuple[TagQueue, ...]
    #: Jobs by tag, in hand or waiting, whether anybody ever served the tag or not.
    jobs: Mapping[str, int]
    #: When the oldest of them was stored, as far as it was looked at.
    oldest_at: Mapping[str, float] = field(default_factory=dict)
    #: Consumers that are not ours.
    strangers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workers:
    records: tuple[WorkerRecord, ...]
    #: The names under which something lies that is no record of a worker.
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """The trace a keeper leaves: it waits for notices of jobs given up."""

    #: A keeper has ever been here.
    was_here: bool
    #: One waits for notices now.
    is_listening: bool
    #: Notices that nobody has dealt with, and when the oldest came.
    notices: int = 0
    oldest_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Orphans:
    """Chunks in an object store that belong to no object: what a crash during an upload leaves."""

    bucket: str
    count: int
    #: At most.
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Where something of ours lies."""

    purpose: str
    path: str
    free_bytes: int
    total_bytes: int
    #: How many more files there can be; None: as many as fit.
    free_files: int | None = None
    #: NATS keeps its data there: a full disk stops everything.
    is_store: bool = False


@dataclass(frozen=True, kw_only=True)
class OwnNats:
    """The NATS that `pyoco-server up` runs, by the configuration it wrote."""

    server_name: str
    host: str
    port: int
    #: 0: before each answer.
    sync_seconds: float
    store_dir: str
    storage_bytes_max: int
    #: Its monitoring address; empty: it has none.
    monitor_url: str = ""


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """What the monitoring port of NATS tells, and the client port does not."""

    server_name: str
    #: 0: before each answer.
    sync_seconds: float
    storage_bytes: int
    storage_bytes_max: int
    store_dir: str


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A gateway, from outside."""

    url: str
    #: Statuses of `/health` and `/ready`; 0: no answer.
    health: int
    ready: int
    #: Whether what it wrote last was stored, by its own word.
    stores: bool = True
    #: Whether it answers without a key.
    is_open: bool | Unknown
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Packs:
    """The packs of this machine, by its settings."""

    offered: tuple[str, ...]
    #: Installed, whether they work or not.
    known: tuple[str, ...]
    #: Asked for by the settings, and not installed.
    strangers: tuple[str, ...] = ()
    #: Installed, and cannot be offered: name, package, why.
    left_out: tuple[tuple[str, str, str], ...] = ()
    #: What is wrong with files that the settings of packs name.
    bad_files: tuple[str, ...] = ()
    #: What reads images; None: nothing does.
    ocr_engine: str | None = None
    #: The languages it reads.
    ocr_languages: tuple[str, ...] | Unknown = ()
    #: What the url pack may fetch, whatever its rules say.
    test_allow: str = ""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the check itself runs."""

    disks: tuple[Disk | Unknown, ...] = ()
    own_nats: OwnNats | None = None
    #: Variables that look like a slip of the pen, each with what was probably meant.
    typos: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    #: None: priced runs are switched off here.
    packs: Packs | None = None


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Of our settings, what rules compare with."""

    nats_url: str
    nats_hosts: tuple[str, ...]
    nats_port: int
    replicas: int
    payload_bytes: int
    work_stream: str
    letters_stream: str
    default_tag: str
    ack_wait_seconds: float
    max_deliver: int
    in_hand_max: int
    abandon_seconds: float
    heartbeat_seconds: float
    disconnect_seconds: float
    retention_seconds: float
    wants_key: bool
    has_pepper: bool


@dataclass(frozen=True)
class Unreadable:
    """Run records that cannot be decoded, of those that were looked at within a few seconds."""

    run_ids: tuple[str, ...] = ()
    looked_at: int = 0
    is_all: bool = True


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything the rules go by."""

    #: By the clock of NATS if it is known, else by ours.
    now: float
    wishes: Wishes
    server: Server | Unreachable
    account: Account | Off | Unknown
    streams: tuple[Stream, ...]
    queue: Queue | Unknown
    workers: Workers | Unknown
    keeper: Keeper | Unknown
    orphans: tuple[Orphans | Unknown, ...]
    #: Runs that a worker had in hand when it fell silent, as they are now.
    left_behind: tuple[Run, ...] | Unknown
    #: How far the clock of this machine is ahead of that of NATS; negative: behind.
    clock_ahead_seconds: float | Unknown
    machine: Machine
    #: None: nobody asked for it.
    monitor: Monitor | Unknown | None = None
    gateway: Gateway | None = None
    #: The stores of priced runs. None: there are none here.
    priced: PricedFacts | Unknown | None = None
    #: The id of the ledger that the deployment uses. None: none is remembered.
    remembered_ledger: str | Unknown | None = None
    #: Run records that cannot be decoded.
    unreadable: Unreadable | Unknown = Unreadable()

    @property
    def is_reached(self) -> bool:
        """Whether NATS and JetStream answer: without them there is nothing else to look at."""
        return isinstance(self.server, Server) and not isinstance(self.account, Off)

    @property
    def is_set_up(self) -> bool:
        """Whether any of our streams is there."""
        return any(not isinstance(stream.state, Missing) for stream in self.streams)

    @property
    def own_nats(self) -> OwnNats | None:
        """The NATS of this machine's data folder, if it is the one that answers."""
        own, server = self.machine.own_nats, self.server
        if own is None or not isinstance(server, Server):
            return None
        return own if (own.server_name, own.port) == (server.name, self.wishes.nats_port) else None
