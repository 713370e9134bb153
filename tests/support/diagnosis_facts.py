"""Facts of a healthy deployment, and changes to them, for tests of the doctor's rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.diagnosis import Finding, Level
from pyoco_server.core.diagnosis.facts import (
    Account,
    Disk,
    Facts,
    Found,
    GatewayFacts,
    Keeper,
    MachineFacts,
    NodeFacts,
    Orphans,
    OwnNats,
    Packs,
    Server,
    StreamFacts,
    TagQueue,
    Wishes,
    Workers,
    WorkQueueFacts,
)
from pyoco_server.core.diagnosis.priced_facts import BucketFacts, LedgerFacts, PricedFacts, Redis, Sqs
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.nats.grid_resources import grid_resources
from pyoco_server.ports.nats.resources import resources_of

__all__ = [
    "ACCOUNT",
    "ANNA",
    "AWAY",
    "DANGER",
    "DISK",
    "DLQ",
    "FAR",
    "GIB",
    "GONE",
    "GOOD",
    "HEALTHY",
    "LANE",
    "LEDGER",
    "LEDGER_ID",
    "NOTE",
    "NOW",
    "OWN",
    "PACKS",
    "PRICED",
    "RUN",
    "RUNS",
    "SERVER",
    "STREAMS",
    "WARNING",
    "WHEELS",
    "WISHES",
    "WORK",
    "Change",
    "disk",
    "found",
    "gateway",
    "given",
    "money",
    "of",
    "of_check",
    "on_cluster",
    "packs",
    "tag_queue",
    "with_stream",
    "worker",
]

GIB = 1024**3
NOW = 1_700_000_000.0
WISHES = Wishes(
    nats_url="nats://127.0.0.1:4222",
    nats_hosts=("127.0.0.1",),
    nats_port=4222,
    replicas=1,
    payload_bytes=917_504,
    work_stream="PYOCO_WORK",
    dead_letters_stream="PYOCO_DLQ",
    default_tag="default",
    ack_wait_seconds=30.0,
    max_deliver=20,
    in_hand_max=200,
    abandon_seconds=120.0,
    heartbeat_seconds=5.0,
    disconnect_seconds=20.0,
    retention_seconds=2_592_000.0,
    wants_key=True,
    has_pepper=True,
)
SERVER = Server(
    name="n1",
    version="2.15.1",
    round_trip_seconds=0.001,
    payload_bytes_max=1_048_576,
    listens_on="127.0.0.1",
    wants_login=False,
    wants_tls=False,
    cluster="",
)
ACCOUNT = Account(
    storage_bytes=GIB,
    storage_bytes_max=None,
    memory_bytes=0,
    memory_bytes_max=None,
    streams=10,
    streams_max=None,
    consumers=5,
    consumers_max=None,
)
ANNA = WorkerRecord(
    worker_id="anna",
    instance_id="a1",
    state=WorkerState.IDLE,
    tags=("default",),
    last_seen_at=NOW - 2,
    last_heartbeat_at=NOW - 2,
    slots=4,
    last_pull_at=NOW - 3,
    versions={"pyoco-server": "0.6.0", "pyoco": "0.8.0"},
    packs=("decision", "ocr"),
)
LANE = TagQueue(
    tag="default", waiting=3, in_hand=1, repeated=0, pulls=1, ack_wait_seconds=30.0, max_deliver=20, in_hand_max=200
)
DISK = Disk(purpose="store of NATS", path="/data", free_bytes=50 * GIB, total_bytes=100 * GIB, is_store=True)
OWN = OwnNats(
    server_name="n1", host="127.0.0.1", port=4222, sync_seconds=1.0, store_dir="/data", storage_bytes_max=80 * GIB
)
RUN = Run(
    run_id="r1",
    flow_name="f",
    tag="default",
    submitted_at=NOW - 9000,
    updated_at=NOW - 3600,
    heartbeat_at=NOW - 3600,
    status=RunState.RUNNING,
    worker_id="bert",
)
PACKS = Packs(
    offered=("decision", "ocr"),
    known=("decision", "ocr"),
    ocr_engine="tesseract",
    ocr_languages=("eng", "jpn", "kor"),
)
LEDGER_ID = "0b5f7a52-0c2b-4a53-9d0e-3b8a0b6f2f11"
LEDGER = LedgerFacts(
    where="/data/ledger.db", version="0001", wanted="0001", mode=0o600, journal="wal", ledger_id=LEDGER_ID
)
PRICED = PricedFacts(
    ledger=LEDGER,
    redis=Redis(),
    sqs=Sqs("dpp-runs", 3, 0),
    bucket=BucketFacts("dpp-results"),
    inputs_bucket=BucketFacts("dpp-inputs"),
    secret_length=32,
)


def _settings(wanted: dict[str, Any]) -> dict[str, Any]:
    """As the server answers: what was not asked for has its default."""
    defaults = {"discard": "old", "max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}
    return {**defaults, "max_msg_size": -1, "sealed": False, "mirror_direct": False, **wanted}


STREAMS = tuple(
    StreamFacts(each.name, each.config, Found(settings=_settings(each.config), leader="n1"))
    for each in (*resources_of(NatsBackendConfig()), *grid_resources(NatsBackendConfig(), GridConfig()))
)
HEALTHY = Facts(
    now=NOW,
    wishes=WISHES,
    server=SERVER,
    account=ACCOUNT,
    streams=STREAMS,
    queue=WorkQueueFacts(tag_queues=(LANE,), jobs={"default": 4}, oldest_at={"default": NOW - 5}),
    workers=Workers((ANNA,)),
    keeper=Keeper(was_here=True, is_listening=True),
    orphans=(Orphans(bucket="pyoco_wheels", count=0, size_bytes=0),),
    left_behind=(),
    clock_ahead_seconds=0.1,
    machine=MachineFacts(
        disks=(DISK,), own_nats=OWN, versions={"pyoco-server": "0.6.0", "pyoco": "0.8.0"}, packs=PACKS
    ),
    priced=PRICED,
    remembered_ledger=LEDGER_ID,
)
Change = Callable[[Facts], Facts]


def with_stream(name: str, **settings: Any) -> Change:
    """The same deployment, with other settings of one stream."""

    def change(facts: Facts) -> Facts:
        def other(stream: StreamFacts) -> StreamFacts:
            if stream.name != name:
                return stream
            assert isinstance(stream.state, Found)
            return replace(stream, state=replace(stream.state, settings={**stream.state.settings, **settings}))

        return replace(facts, streams=tuple(map(other, facts.streams)))

    return change


def found(**more: Any) -> Change:
    """Another state of every stream."""

    def change(facts: Facts) -> Facts:
        streams = []
        for each in facts.streams:
            assert isinstance(each.state, Found)
            streams.append(replace(each, state=replace(each.state, **more)))
        return replace(facts, streams=tuple(streams))

    return change


def of(name: str, **more: Any) -> Change:
    """Other members of one part of the facts."""
    return lambda facts: replace(facts, **{name: replace(getattr(facts, name), **more)})


def given(**more: Any) -> Change:
    return lambda facts: replace(facts, **more)


def worker(**more: Any) -> Change:
    return given(workers=Workers((replace(ANNA, **more),)))


def tag_queue(**more: Any) -> Change:
    return of("queue", tag_queues=(replace(LANE, **more),))


def money(**more: Any) -> Change:
    return of("priced", **more)


def packs(**more: Any) -> Change:
    return of("machine", packs=replace(PACKS, **more))


def disk(**more: Any) -> Change:
    return of("machine", disks=(replace(DISK, **more),))


def on_cluster(replicas: int, *peers: NodeFacts, leader: str = "n1") -> Change:
    def change(facts: Facts) -> Facts:
        facts = replace(facts, server=replace(SERVER, cluster="c"), wishes=replace(WISHES, replicas=3))
        facts = found(leader=leader, peers=peers)(facts)
        for each in facts.streams:
            facts = with_stream(each.name, num_replicas=replicas)(facts)
        return facts

    return change


def gateway(**more: Any) -> Change:
    asked = GatewayFacts(url="http://127.0.0.1:8000", health=200, ready=200, is_open=True, seconds=0.01)
    return given(gateway=replace(asked, **more))


FAR = "http://api.example.com:8000"
GOOD = NodeFacts("n2", is_current=True, is_offline=False, lag=0)
AWAY = NodeFacts("n3", is_current=False, is_offline=True, lag=0)
GONE = NodeFacts("n4", is_current=False, is_offline=False, lag=0, silent_seconds=9.0)
DANGER, WARNING, NOTE = Level.DANGER, Level.WARNING, Level.NOTE
WORK, RUNS, WHEELS, DLQ = "PYOCO_WORK", "KV_pyoco_runs", "OBJ_pyoco_wheels", "PYOCO_DLQ"


def of_check(findings: tuple[Finding, ...], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]
