"""The facts about a deployment at one moment. A fact that could not be determined is a value, too: Unknown."""

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
    "GatewayFacts",
    "Keeper",
    "MachineFacts",
    "Missing",
    "Monitor",
    "NodeFacts",
    "Off",
    "Orphans",
    "OwnNats",
    "Packs",
    "Server",
    "StreamFacts",
    "TagQueue",
    "Trouble",
    "Unknown",
    "Unreachable",
    "Unreadable",
    "Wishes",
    "WorkQueueFacts",
    "Workers",
]


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be determined."""

    why: str


class Trouble(Enum):
    """Why there is no connection."""

    NOBODY_ANSWERS = "nobody answers"
    LOGIN_REFUSED = "login refused"
    TLS_FAILED = "tls failed"


@dataclass(frozen=True)
class Unreachable:
    """There is no connection to NATS, so no other facts about it are known."""

    trouble: Trouble
    why: str


@dataclass(frozen=True, kw_only=True)
class Server:
    """The connected NATS server, as it describes itself."""

    name: str
    version: str
    round_trip_seconds: float
    payload_bytes_max: int
    #: The address it listens on; empty: not reported.
    listens_on: str
    wants_login: bool
    wants_tls: bool
    #: Its cluster; empty: it is a single server.
    cluster: str


@dataclass(frozen=True)
class Off:
    """NATS answers, but JetStream does not."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Account:
    """JetStream usage and limits of our account; None: no limit of its own."""

    storage_bytes: int
    storage_bytes_max: int | None
    memory_bytes: int
    memory_bytes_max: int | None
    streams: int
    streams_max: int | None
    consumers: int
    consumers_max: int | None
    #: Streams can only be created with a byte limit, which ours do not have.
    wants_stream_limits: bool = False


@dataclass(frozen=True)
class NodeFacts:
    """Another node that stores a copy of a stream."""

    name: str
    is_current: bool
    is_offline: bool
    #: How many writes it is lagging.
    lag: int
    #: Seconds since the last contact with it.
    silent_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """The actual state of a stream."""

    settings: Mapping[str, Any]
    messages: int = 0
    size_bytes: int = 0
    #: When the oldest and the newest message were stored; None: there are no messages.
    first_at: float | None = None
    last_at: float | None = None
    #: Empty: it has no leader, so it can be neither read nor written.
    leader: str = ""
    peers: tuple[NodeFacts, ...] = ()


class Missing:
    """The stream does not exist."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(frozen=True)
class StreamFacts:
    """One of our streams, buckets or object stores: as we would create it, and as it is."""

    name: str
    wanted: Mapping[str, Any]
    state: Found | Missing | Unknown


@dataclass(frozen=True, kw_only=True)
class TagQueue:
    """The consumer that delivers jobs to the workers of one tag."""

    tag: str
    #: Jobs that were never delivered.
    waiting: int
    #: Jobs that were delivered and not acknowledged yet.
    in_hand: int
    #: How many of these were delivered more than once.
    repeated: int
    #: Pull requests that are pending here now.
    pulls: int
    ack_wait_seconds: float
    #: 0: unlimited.
    max_deliver: int
    in_hand_max: int
    is_paused: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkQueueFacts:
    """The stream of jobs, by tag."""

    tag_queues: tuple[TagQueue, ...]
    #: Jobs by tag, in flight or waiting, whether or not the tag was ever served.
    jobs: Mapping[str, int]
    #: When the oldest of them was stored, as far as the stream was read.
    oldest_at: Mapping[str, float] = field(default_factory=dict)
    #: Consumers that are not ours.
    strangers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workers:
    records: tuple[WorkerRecord, ...]
    #: Registry keys that do not contain a valid worker record.
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """Traces of a keeper: it consumes the notices of jobs that the queue gave up on."""

    #: Whether a keeper has ever run here.
    was_here: bool
    #: Whether one is waiting for notices now.
    is_listening: bool
    #: Unprocessed notices, and when the oldest was stored.
    notices: int = 0
    oldest_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Orphans:
    """Chunks in an object store that belong to no object, left behind by a crash during an upload."""

    bucket: str
    count: int
    #: An upper bound.
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A file system that holds data of ours."""

    purpose: str
    path: str
    free_bytes: int
    total_bytes: int
    #: How many more files can be created; None: not limited.
    free_files: int | None = None
    #: NATS stores its data there: a full disk stops everything.
    is_store: bool = False


@dataclass(frozen=True, kw_only=True)
class OwnNats:
    """The NATS server started by `pyoco-server up`, according to the configuration it wrote."""

    server_name: str
    host: str
    port: int
    #: 0: before each acknowledgement.
    sync_seconds: float
    store_dir: str
    storage_bytes_max: int
    #: Its monitoring address; empty: none.
    monitor_url: str = ""


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """Facts available from the monitoring port of NATS, but not from the client port."""

    server_name: str
    #: 0: before each acknowledgement.
    sync_seconds: float
    storage_bytes: int
    storage_bytes_max: int
    store_dir: str


@dataclass(frozen=True)
class WaitingRuns:
    """The runs of a tag that wait for a worker."""

    depth: int
    oldest_at: float | None


@dataclass(frozen=True, kw_only=True)
class GatewayFacts:
    """A gateway, seen by a client."""

    url: str
    #: Status codes of `/health` and `/ready`; 0: no response.
    health: int
    ready: int
    #: Whether its last write was stored, as it reports.
    stores: bool = True
    #: Whether it accepts requests without a key.
    is_open: bool | Unknown
    seconds: float
    #: Runs that wait for a worker, by tag. None: it does not say, for example because it wants a key.
    waiting: Mapping[str, WaitingRuns] | None = None


@dataclass(frozen=True, kw_only=True)
class Packs:
    """The packs of this machine, according to its settings."""

    offered: tuple[str, ...]
    #: Installed, whether or not they work.
    known: tuple[str, ...]
    #: Named by the settings, but not installed.
    strangers: tuple[str, ...] = ()
    #: Installed, but not usable: name, package, reason.
    left_out: tuple[tuple[str, str, str], ...] = ()
    #: Problems of files that the settings of packs name.
    bad_files: tuple[str, ...] = ()
    #: The OCR engine; None: not installed.
    ocr_engine: str | None = None
    #: The languages it supports.
    ocr_languages: tuple[str, ...] | Unknown = ()
    #: The address that the url pack may fetch regardless of its rules.
    test_allow: str = ""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The machine on which the check runs."""

    disks: tuple[Disk | Unknown, ...] = ()
    own_nats: OwnNats | None = None
    #: Environment variables that look like typos, each with the probable intended name.
    typos: Mapping[str, str] = field(default_factory=dict)
    #: Environment variables without an effect any more, each with what is in effect instead.
    unused: Mapping[str, str] = field(default_factory=dict)
    #: Environment variables that are set and meant for tests only.
    for_tests: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    #: None: priced runs are disabled here.
    packs: Packs | None = None


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The settings that rules compare with the facts."""

    nats_url: str
    nats_hosts: tuple[str, ...]
    nats_port: int
    replicas: int
    payload_bytes: int
    work_stream: str
    dead_letters_stream: str
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
    """Run records that cannot be decoded, among those read within a few seconds."""

    run_ids: tuple[str, ...] = ()
    looked_at: int = 0
    is_all: bool = True


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The input of all rules."""

    #: By the clock of NATS if it is known, otherwise by ours.
    now: float
    wishes: Wishes
    server: Server | Unreachable
    account: Account | Off | Unknown
    streams: tuple[StreamFacts, ...]
    queue: WorkQueueFacts | Unknown
    workers: Workers | Unknown
    keeper: Keeper | Unknown
    orphans: tuple[Orphans | Unknown, ...]
    #: Runs that a worker owned when its heartbeats stopped, in their current state.
    left_behind: tuple[Run, ...] | Unknown
    #: How far the clock of this machine is ahead of that of NATS; negative: behind.
    clock_ahead_seconds: float | Unknown
    machine: MachineFacts
    #: None: not requested.
    monitor: Monitor | Unknown | None = None
    gateway: GatewayFacts | None = None
    #: The stores of priced runs. None: there are none.
    priced: PricedFacts | Unknown | None = None
    #: The id of the ledger that the deployment uses. None: not recorded.
    remembered_ledger: str | Unknown | None = None
    #: Run records that cannot be decoded.
    unreadable: Unreadable | Unknown = Unreadable()

    @property
    def is_reached(self) -> bool:
        """Return whether NATS and JetStream answer: without them, no other fact can be gathered."""
        return isinstance(self.server, Server) and not isinstance(self.account, Off)

    @property
    def is_set_up(self) -> bool:
        """Return whether any of our streams exists."""
        return any(not isinstance(stream.state, Missing) for stream in self.streams)

    @property
    def own_nats(self) -> OwnNats | None:
        """Return the NATS server of this machine's data directory, if it is the one we are connected to."""
        own, server = self.machine.own_nats, self.server
        if own is None or not isinstance(server, Server):
            return None
        return own if (own.server_name, own.port) == (server.name, self.wishes.nats_port) else None
