"""The doctor's rules: facts in, findings out. No server, no clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.diagnosis import BAD_SETTING, CHECKS, Finding, Level, diagnose, settings_refused, worst
from pyoco_server.core.diagnosis.facts import (
    MISSING,
    Account,
    Disk,
    Facts,
    Found,
    Gateway,
    Keeper,
    Lane,
    Machine,
    Monitor,
    Off,
    Orphans,
    OwnNats,
    Packs,
    Peer,
    Queue,
    Server,
    Stream,
    Trouble,
    Unknown,
    Unreachable,
    Wishes,
    Workers,
)
from pyoco_server.core.diagnosis.finding import age, size, some
from pyoco_server.core.diagnosis.nats import is_local
from pyoco_server.core.diagnosis.priced_facts import Absent, Bucket, Ledger, PricedFacts, Redis, Sqs
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.nats.grid_resources import grid_resources
from pyoco_server.ports.nats.resources import resources_of

GIB = 1024**3
NOW = 1_700_000_000.0
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "doctor.md"

WISHES = Wishes(
    nats_url="nats://127.0.0.1:4222",
    nats_hosts=("127.0.0.1",),
    nats_port=4222,
    replicas=1,
    payload_bytes=917_504,
    work_stream="PYOCO_WORK",
    letters_stream="PYOCO_DLQ",
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
LANE = Lane(
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
LEDGER = Ledger(where="/data/ledger.db", version="0001", wanted="0001", mode=0o600, journal="wal")
PRICED = PricedFacts(
    ledger=LEDGER,
    redis=Redis(),
    sqs=Sqs("dpp-runs", 3, 0),
    bucket=Bucket("dpp-results"),
    inputs_bucket=Bucket("dpp-inputs"),
    secret_length=32,
)


def _settings(wanted: dict[str, Any]) -> dict[str, Any]:
    """As the server answers: what was not asked for has its default."""
    defaults = {"discard": "old", "max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}
    return {**defaults, "max_msg_size": -1, "sealed": False, "mirror_direct": False, **wanted}


STREAMS = tuple(
    Stream(each.name, each.config, Found(settings=_settings(each.config), leader="n1"))
    for each in (*resources_of(NatsBackendConfig()), *grid_resources(NatsBackendConfig(), GridConfig()))
)

HEALTHY = Facts(
    now=NOW,
    wishes=WISHES,
    server=SERVER,
    account=ACCOUNT,
    streams=STREAMS,
    queue=Queue(lanes=(LANE,), jobs={"default": 4}, oldest_at={"default": NOW - 5}),
    workers=Workers((ANNA,)),
    keeper=Keeper(was_here=True, is_listening=True),
    orphans=(Orphans(bucket="pyoco_wheels", count=0, size_bytes=0),),
    left_behind=(),
    clock_ahead_seconds=0.1,
    machine=Machine(disks=(DISK,), own_nats=OWN, versions={"pyoco-server": "0.6.0", "pyoco": "0.8.0"}, packs=PACKS),
    priced=PRICED,
)

Change = Callable[[Facts], Facts]


def with_stream(name: str, **settings: Any) -> Change:
    """The same deployment, with other settings of one stream."""

    def change(facts: Facts) -> Facts:
        def other(stream: Stream) -> Stream:
            if stream.name != name:
                return stream
            assert isinstance(stream.state, Found)
            return replace(stream, state=replace(stream.state, settings={**stream.state.settings, **settings}))

        return replace(facts, streams=tuple(map(other, facts.streams)))

    return change


def with_state(name: str, state: Any) -> Change:
    return lambda facts: replace(
        facts, streams=tuple(replace(each, state=state) if each.name == name else each for each in facts.streams)
    )


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


def lane(**more: Any) -> Change:
    return of("queue", lanes=(replace(LANE, **more),))


def money(**more: Any) -> Change:
    return of("priced", **more)


def ledger(**more: Any) -> Change:
    return money(ledger=replace(LEDGER, **more))


def packs(**more: Any) -> Change:
    return of("machine", packs=replace(PACKS, **more))


def disk(**more: Any) -> Change:
    return of("machine", disks=(replace(DISK, **more),))


def on_cluster(replicas: int, *peers: Peer, leader: str = "n1") -> Change:
    def change(facts: Facts) -> Facts:
        facts = replace(facts, server=replace(SERVER, cluster="c"), wishes=replace(WISHES, replicas=3))
        facts = found(leader=leader, peers=peers)(facts)
        for each in facts.streams:
            facts = with_stream(each.name, num_replicas=replicas)(facts)
        return facts

    return change


def gateway(**more: Any) -> Change:
    asked = Gateway(url="http://127.0.0.1:8000", health=200, ready=200, is_open=True, seconds=0.01)
    return given(gateway=replace(asked, **more))


FAR = "http://api.example.com:8000"
GOOD = Peer("n2", is_current=True, is_offline=False, lag=0)
AWAY = Peer("n3", is_current=False, is_offline=True, lag=0)
GONE = Peer("n4", is_current=False, is_offline=False, lag=0, silent_seconds=9.0)
DANGER, WARNING, NOTE = Level.DANGER, Level.WARNING, Level.NOTE
WORK, RUNS, WHEELS, DLQ = "PYOCO_WORK", "KV_pyoco_runs", "OBJ_pyoco_wheels", "PYOCO_DLQ"
EXEC = "PYOCO_EXEC"

#: What is changed in a healthy deployment, the check that must notice, and how bad that is.
SICK: list[tuple[str, Change, str, Level]] = [
    ("nobody", given(server=Unreachable(Trouble.NOBODY_ANSWERS, "refused")), "nats.reachable", DANGER),
    ("password", given(server=Unreachable(Trouble.LOGIN_REFUSED, "no")), "nats.reachable", DANGER),
    ("certificate", given(server=Unreachable(Trouble.TLS_FAILED, "no")), "nats.reachable", DANGER),
    ("far away", of("server", round_trip_seconds=0.2), "nats.reachable", WARNING),
    ("too old", of("server", version="2.10.22"), "nats.version", DANGER),
    ("old", of("server", version="2.12.1"), "nats.version", WARNING),
    ("just old", of("server", version="2.11.0"), "nats.version", WARNING),
    ("no version", of("server", version="dev"), "nats.version", NOTE),
    ("small messages", of("server", payload_bytes_max=65_536), "nats.payload", DANGER),
    ("listens to all", of("server", listens_on="0.0.0.0"), "nats.login", WARNING),
    ("no tls", of("server", listens_on="0.0.0.0", wants_login=True), "nats.tls", WARNING),
    ("other machine", of("wishes", nats_hosts=("127.0.0.1", "n2.example.com")), "nats.login", WARNING),
    ("default sync", given(machine=Machine(own_nats=replace(OWN, sync_seconds=120.0))), "nats.sync", WARNING),
    ("sync unseen", given(machine=Machine()), "nats.sync", NOTE),
    ("other server's file", of("machine", own_nats=replace(OWN, server_name="x")), "nats.sync", NOTE),
    ("clock", given(clock_ahead_seconds=-20.0), "nats.clock", WARNING),
    ("wrong clock", given(clock_ahead_seconds=3600.0), "nats.clock", DANGER),
    ("clock unseen", given(clock_ahead_seconds=Unknown("x")), "nats.clock", NOTE),
    ("no JetStream", given(account=Off("disabled"), streams=()), "jetstream.enabled", DANGER),
    ("silent JetStream", given(account=Unknown("no answer"), streams=()), "jetstream.enabled", DANGER),
    ("nearly full", of("account", storage_bytes_max=int(1.2 * GIB)), "jetstream.storage", WARNING),
    ("full", of("account", storage_bytes_max=GIB), "jetstream.storage", DANGER),
    ("full server", of("machine", own_nats=replace(OWN, storage_bytes_max=GIB)), "jetstream.storage", DANGER),
    ("no disk allowed", of("account", storage_bytes=0, storage_bytes_max=0), "jetstream.storage", DANGER),
    (
        "too few streams",
        lambda facts: with_state(WORK, MISSING)(of("account", streams=9, streams_max=9)(facts)),
        "jetstream.limits",
        DANGER,
    ),
    (
        "wants limits",
        lambda facts: with_state(WORK, MISSING)(of("account", wants_stream_limits=True)(facts)),
        "jetstream.limits",
        DANGER,
    ),
    ("many consumers", of("account", consumers=900, consumers_max=1000), "jetstream.limits", WARNING),
    ("no more consumers", of("account", consumers=5, consumers_max=5), "jetstream.limits", DANGER),
    ("one is missing", with_state(WORK, MISSING), "stream.present", DANGER),
    ("one is silent", with_state(WORK, Unknown("no answer")), "stream.present", DANGER),
    (
        "nothing is there",
        lambda facts: replace(facts, streams=tuple(replace(each, state=MISSING) for each in facts.streams)),
        "stream.present",
        WARNING,
    ),
    ("in memory", with_stream(RUNS, storage="memory"), "stream.storage", DANGER),
    ("work is kept", with_stream(WORK, retention="limits"), "stream.retention", DANGER),
    ("deaf stream", with_stream(WORK, subjects=["other.>"]), "stream.subjects", DANGER),
    ("curious stream", with_stream(WORK, subjects=["pyoco.work.>", "other.>"]), "stream.subjects", WARNING),
    ("jobs expire", with_stream(WORK, max_age=3600 * 10**9), "stream.age", DANGER),
    ("wheels expire", with_stream(WHEELS, max_age=3600 * 10**9), "stream.age", DANGER),
    ("letters expire soon", with_stream(DLQ, max_age=60 * 10**9), "stream.age", WARNING),
    ("letters stay", with_stream(DLQ, max_age=0), "stream.age", NOTE),
    ("jobs are dropped", with_stream(WORK, max_msgs=1000), "stream.room", DANGER),
    ("runs are dropped", with_stream(RUNS, max_bytes=1000, discard="old"), "stream.room", DANGER),
    ("one job for each tag", with_stream(WORK, max_msgs_per_subject=1), "stream.room", DANGER),
    ("small jobs only", with_stream(WORK, max_msg_size=1000), "stream.room", DANGER),
    ("runs are nearly full", lambda f: found(messages=85)(with_stream(RUNS, max_msgs=100)(f)), "stream.room", WARNING),
    ("runs are full", lambda f: found(size_bytes=99)(with_stream(RUNS, max_bytes=100)(f)), "stream.room", DANGER),
    ("sealed", with_stream(RUNS, sealed=True), "stream.writable", DANGER),
    ("no acks", with_stream(WORK, no_ack=True), "stream.writable", DANGER),
    ("acks too early", with_stream(WORK, persist_mode="async"), "stream.writable", DANGER),
    ("no rollup", with_stream(WHEELS, allow_rollup_hdrs=False), "stream.writable", DANGER),
    ("no purge", with_stream(WHEELS, deny_purge=True), "stream.writable", WARNING),
    ("mirror", with_stream(RUNS, mirror={"name": "x"}), "stream.writable", DANGER),
    ("no expiry", with_stream(RUNS, allow_msg_ttl=False), "stream.records", WARNING),
    ("no markers", with_stream(RUNS, subject_delete_marker_ttl=0), "stream.records", WARNING),
    ("long history", with_stream(RUNS, max_msgs_per_subject=5), "stream.records", WARNING),
    ("programs twice", with_stream(EXEC, max_msgs_per_subject=2), "stream.programs", DANGER),
    ("programs pushed out", with_stream(EXEC, discard_new_per_subject=False), "stream.programs", DANGER),
    ("programs stay", with_stream(EXEC, retention="limits"), "stream.retention", DANGER),
    ("programs are missing", with_state(EXEC, MISSING), "stream.present", DANGER),
    ("small programs only", with_stream(EXEC, max_msg_size=1000), "stream.room", DANGER),
    ("placements are short-lived", with_stream("KV_pyoco_exec_routes", max_age=10**9), "stream.age", WARNING),
    ("R1 of three", on_cluster(1), "stream.replicas", DANGER),
    ("R2 of three", on_cluster(2, GOOD), "stream.replicas", WARNING),
    (
        "R3, and the setting says 1",
        lambda facts: replace(on_cluster(3, GOOD, GOOD)(facts), wishes=WISHES),
        "stream.replicas",
        WARNING,
    ),
    ("one copy away", on_cluster(3, GOOD, AWAY), "stream.peers", WARNING),
    ("two copies away", on_cluster(3, AWAY, AWAY), "stream.peers", DANGER),
    ("no leader", on_cluster(3, GOOD, GOOD, leader=""), "stream.peers", DANGER),
    ("killed a moment ago", on_cluster(3, GOOD, GONE), "stream.peers", WARNING),
    ("two killed a moment ago", on_cluster(3, GONE, AWAY), "stream.peers", DANGER),
    ("the other of two away", on_cluster(2, AWAY), "stream.peers", DANGER),
    ("behind", on_cluster(3, GOOD, replace(GOOD, lag=5000)), "stream.peers", WARNING),
    ("not current", on_cluster(3, GOOD, replace(GOOD, is_current=False)), "stream.peers", WARNING),
    ("unserved", of("queue", jobs={"default": 4, "gpu": 2}), "queue.unserved", DANGER),
    ("queue unseen", given(queue=Unknown("no answer")), "queue.unserved", DANGER),
    ("paused", lane(is_paused=True), "queue.lanes", DANGER),
    ("few deliveries", lane(max_deliver=3), "queue.lanes", WARNING),
    ("narrow", lane(in_hand_max=2), "queue.lanes", WARNING),
    ("other ack wait", lane(ack_wait_seconds=60.0), "queue.lanes", NOTE),
    ("stranger", of("queue", strangers=("audit",)), "queue.strangers", DANGER),
    ("storm", lane(repeated=50), "queue.repeats", WARNING),
    ("nobody works", of("workers", records=()), "worker.alive", WARNING),
    ("all are gone", worker(last_seen_at=NOW - 600), "worker.alive", WARNING),
    ("workers unseen", given(workers=Unknown("no answer")), "worker.alive", DANGER),
    ("deaf and alone", worker(last_pull_at=NOW - 300), "worker.hearing", DANGER),
    (
        "deaf among others",
        given(workers=Workers((ANNA, replace(ANNA, worker_id="bert", last_pull_at=NOW - 300)))),
        "worker.hearing",
        WARNING,
    ),
    ("deaf, and jobs wait", worker(last_pull_at=NOW - 300), "queue.unserved", DANGER),
    ("another tag", worker(tags=("gpu",)), "worker.default_tag", WARNING),
    ("other version here", of("machine", versions={"pyoco-server": "0.7.0"}), "worker.versions", WARNING),
    (
        "other version there",
        given(workers=Workers((ANNA, replace(ANNA, worker_id="bert", versions={"pyoco": "0.7"})))),
        "worker.versions",
        WARNING,
    ),
    (
        "wheel failed",
        worker(wheel_sync={"status": "error", "failed": [{"wheel_name": "a-1.whl", "error": "no room"}]}),
        "worker.wheels",
        WARNING,
    ),
    ("strange wheel report", worker(wheel_sync={"status": "error", "failed": ["x", 3]}), "worker.wheels", WARNING),
    ("unreadable", of("workers", unreadable=("x",)), "worker.records", WARNING),
    ("no keeper", of("keeper", is_listening=False), "keeper.alive", DANGER),
    ("never a keeper", of("keeper", is_listening=False, was_here=False), "keeper.alive", DANGER),
    ("keeper unseen", given(keeper=Unknown("no answer")), "keeper.alive", DANGER),
    ("notices wait", of("keeper", notices=3, oldest_at=NOW - 900), "keeper.notices", DANGER),
    ("stuck", given(left_behind=(RUN,)), "runs.stuck", DANGER),
    ("stuck cancel", given(left_behind=(replace(RUN, status=RunState.CANCELLING),)), "runs.stuck", DANGER),
    ("left behind unseen", given(left_behind=Unknown("no answer")), "runs.stuck", DANGER),
    ("letters", found(messages=7, last_at=NOW - 60), "letters.count", NOTE),
    ("orphans", given(orphans=(Orphans(bucket="b", count=2, size_bytes=GIB),)), "objects.orphans", NOTE),
    ("store unseen", given(orphans=(Unknown("no answer"),)), "objects.orphans", NOTE),
    ("no ledger yet", money(ledger=Absent("/data/ledger.db")), "ledger.reachable", NOTE),
    ("silent ledger", money(ledger=Unknown("no answer")), "ledger.reachable", DANGER),
    ("old tables", ledger(version="0000"), "ledger.version", DANGER),
    ("no tables", ledger(version=None), "ledger.version", DANGER),
    ("newer tables", ledger(version="0009", is_known=False), "ledger.version", DANGER),
    ("money for all to read", ledger(mode=0o644), "ledger.file", WARNING),
    ("ledger on NFS", ledger(journal="delete"), "ledger.file", WARNING),
    ("disputed", ledger(disputed=("r1",)), "ledger.disputed", DANGER),
    ("overdue", ledger(overdue=("r1",)), "ledger.overdue", DANGER),
    ("silent Redis", money(redis=Unknown("no answer")), "budget.redis", DANGER),
    ("old Redis", money(redis=Redis(unfit="Redis 7 or later is needed")), "budget.redis", DANGER),
    ("Redis that evicts", money(redis=Redis(dangers=("it evicts",))), "budget.redis", DANGER),
    ("silent SQS", money(sqs=Unknown("no answer")), "packs.queue", DANGER),
    ("no SQS queue", money(sqs=Absent("dpp-runs")), "packs.queue", WARNING),
    ("letters in SQS", money(sqs=Sqs("dpp-runs", 0, 2)), "packs.letters", NOTE),
    (
        "letters in JetStream",
        lambda facts: found(messages=2)(money(sqs=None, letters_stream=DLQ)(facts)),
        "packs.letters",
        NOTE,
    ),
    ("packs that do not work", packs(left_out=(("words", "words 1.0", "it raises"),)), "packs.installed", WARNING),
    ("no such pack", packs(strangers=("wrods",)), "packs.installed", DANGER),
    ("a pack of gateways alone", packs(offered=("decision", "ocr", "words")), "packs.executed", WARNING),
    ("a pack that is left out there", worker(packs=("decision",)), "packs.executed", WARNING),
    ("no pack at all there", worker(packs=()), "packs.executed", WARNING),
    ("a file of packs", packs(bad_files=("PYOCO_URL_PACK_CA_FILE: no file",)), "packs.files", DANGER),
    ("no Korean", packs(ocr_languages=("eng",)), "packs.ocr", NOTE),
    ("silent engine", packs(ocr_languages=Unknown("no answer")), "packs.ocr", NOTE),
    ("nobody reads", packs(ocr_engine=None), "packs.ocr", NOTE),
    ("a hole for tests", packs(test_allow="127.0.0.1:8443"), "packs.test_allow", WARNING),
    ("silent S3", money(bucket=Unknown("no answer")), "results.bucket", DANGER),
    ("silent S3 of inputs", money(inputs_bucket=Unknown("no answer")), "inputs.bucket", DANGER),
    ("short secret", money(secret_length=8), "settings.secret", WARNING),
    ("no gateway", gateway(health=0, ready=0), "gateway.ready", DANGER),
    ("sick gateway", gateway(health=500), "gateway.ready", DANGER),
    ("not ready", gateway(ready=503), "gateway.ready", DANGER),
    ("nothing stored", gateway(ready=503, stores=False), "gateway.ready", DANGER),
    ("open to all", gateway(url=FAR), "gateway.open", WARNING),
    ("perhaps open", gateway(is_open=Unknown("503")), "gateway.open", NOTE),
    ("plain http", gateway(url=FAR, is_open=False), "gateway.tls", WARNING),
    ("keys are off", of("wishes", wants_key=False), "settings.keys", NOTE),
    ("no pepper", of("wishes", has_pepper=False), "settings.pepper", WARNING),
    ("rare heartbeats", of("wishes", heartbeat_seconds=15.0), "settings.timing", WARNING),
    ("few deliveries wanted", of("wishes", max_deliver=2), "settings.timing", WARNING),
    ("kept for ever", of("wishes", retention_seconds=0.0), "settings.timing", NOTE),
    ("typo", of("machine", typos={"PYOCO_NATSURL": "PYOCO_NATS_URL"}), "settings.typos", WARNING),
    ("tiny disk", disk(free_bytes=100 * 1024**2), "machine.disk", DANGER),
    ("small disk", disk(free_bytes=2 * GIB), "machine.disk", WARNING),
    ("no more files", disk(free_files=3), "machine.disk", DANGER),
    ("full ledger", disk(purpose="ledger", is_store=False, free_bytes=10 * 1024**2), "machine.disk", DANGER),
    ("tiny folder", disk(is_store=False, free_bytes=10 * 1024**2), "machine.disk", DANGER),
    ("disk unseen", of("machine", disks=(Unknown("gone"),)), "machine.disk", NOTE),
]


def of_check(findings: tuple[Finding, ...], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def test_a_healthy_deployment_gets_no_remark() -> None:
    assert [finding for finding in diagnose(HEALTHY) if finding.level is not Level.OK] == []


def test_what_was_looked_at_and_is_well_is_said() -> None:
    said = {finding.check for finding in diagnose(HEALTHY)}
    quiet = {"queue.strangers", "queue.repeats", "worker.hearing", "worker.default_tag", "worker.wheels"}
    quiet |= {"worker.records", "keeper.notices", "runs.stuck", "objects.orphans", "settings.pepper", "settings.typos"}
    quiet |= {
        "ledger.disputed",
        "ledger.overdue",
        "packs.letters",
        "packs.files",
        "packs.test_allow",
        "settings.secret",
    }
    elsewhere = {"stream.peers", "gateway.ready", "gateway.open", "gateway.tls"}
    assert {check.id for check in CHECKS} - said == quiet | elsewhere


@pytest.mark.parametrize(("change", "check", "level"), [each[1:] for each in SICK], ids=[each[0] for each in SICK])
def test_what_is_wrong_is_found_and_told_with_reason_and_fix(change: Change, check: str, level: Level) -> None:
    findings = diagnose(change(HEALTHY))
    assert worst(of_check(findings, check)) is level, findings
    for finding in findings:
        if finding.level.rank >= WARNING.rank:
            assert finding.why, finding
            assert finding.fix, finding


@pytest.mark.parametrize(("change", "check"), [(each[1], each[2]) for each in SICK], ids=[each[0] for each in SICK])
def test_what_is_wrong_is_not_called_well_in_the_same_breath(change: Change, check: str) -> None:
    about: dict[str, set[Level]] = {}
    for finding in of_check(diagnose(change(HEALTHY)), check):
        about.setdefault(finding.about, set()).add(finding.level)
    assert not any(Level.OK in levels and len(levels) > 1 for levels in about.values()), about


def test_every_check_has_something_it_notices() -> None:
    assert {check.id for check in CHECKS} - {each[2] for each in SICK} == {"machine.software"}


@pytest.mark.parametrize(
    "change",
    [
        worker(packs=None),
        worker(packs=(), last_seen_at=NOW - 600),
        lambda facts: money(ledger=Absent("/data/ledger.db"))(worker(packs=())(facts)),
        given(priced=None, workers=Workers((replace(ANNA, packs=()),))),
    ],
    ids=["old version", "gone", "no ledger", "switched off"],
)
def test_a_pack_is_missed_only_where_somebody_could_execute_it(change: Change) -> None:
    assert of_check(diagnose(change(HEALTHY)), "packs.executed") == []


def test_one_worker_for_a_pack_is_enough() -> None:
    crew = Workers((replace(ANNA, packs=("ocr",)), replace(ANNA, worker_id="bert", packs=("decision",))))
    assert worst(of_check(diagnose(replace(HEALTHY, workers=crew)), "packs.executed")) is Level.OK


def test_the_languages_of_the_engine_are_told() -> None:
    (well,) = of_check(diagnose(HEALTHY), "packs.ocr")
    assert well.what == "images are read by tesseract; languages: eng, jpn, kor"
    (poor,) = of_check(diagnose(packs(ocr_languages=("eng",))(HEALTHY)), "packs.ocr")
    assert poor.what.endswith("languages: eng; missing: kor")
    assert "tesseract-ocr-kor" in poor.fix


def test_ids_are_unique_and_of_one_form() -> None:
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", each) for each in ids)


def test_every_check_is_in_the_guide_and_the_guide_names_no_other() -> None:
    named = re.findall(r"^\| `([a-z]+\.[a-z_]+)` \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted([*(check.id for check in CHECKS), BAD_SETTING])


@pytest.mark.parametrize("name", [each.name for each in fields(Facts)])
def test_a_fact_that_could_not_be_had_hides_no_other(name: str) -> None:
    """Every rule bears every Unknown."""
    nothing: dict[str, Any] = {
        "now": NOW,
        "wishes": WISHES,
        "server": Unreachable(Trouble.NOBODY_ANSWERS, "x"),
        "streams": (),
        "orphans": (Unknown("x"),),
        "machine": Machine(),
        "gateway": None,
    }
    findings = diagnose(replace(HEALTHY, **{name: nothing.get(name, Unknown("x"))}))
    assert len(of_check(findings, "settings.timing")) == 1


def test_without_nats_one_danger_is_told_and_not_twenty() -> None:
    dark = Unknown("NATS does not answer")
    facts = replace(
        HEALTHY,
        server=Unreachable(Trouble.NOBODY_ANSWERS, "refused"),
        account=dark,
        streams=(),
        queue=dark,
        workers=dark,
        keeper=dark,
        orphans=(),
        left_behind=dark,
        clock_ahead_seconds=dark,
    )
    bad = [finding.check for finding in diagnose(facts) if finding.level.rank >= WARNING.rank]
    assert bad == ["nats.reachable"]


def test_where_nothing_was_set_up_nobody_is_missed() -> None:
    facts = replace(
        HEALTHY,
        streams=tuple(replace(each, state=MISSING) for each in STREAMS),
        queue=Unknown("x"),
        workers=Unknown("x"),
        keeper=Unknown("x"),
        left_behind=Unknown("x"),
        orphans=(Unknown("x"),),
        clock_ahead_seconds=Unknown("x"),
    )
    bad = [finding.check for finding in diagnose(facts) if finding.level.rank >= NOTE.rank]
    assert bad == ["stream.present"]


FINE: list[tuple[str, Change, str]] = [
    ("R3", on_cluster(3, GOOD, GOOD), "stream.replicas"),
    ("all peers", on_cluster(3, GOOD, GOOD), "stream.peers"),
    ("login on a network", of("server", listens_on="0.0.0.0", wants_login=True), "nats.login"),
    ("tls on a network", of("server", listens_on="0.0.0.0", wants_tls=True), "nats.tls"),
    ("sync always", of("machine", own_nats=replace(OWN, sync_seconds=0.0)), "nats.sync"),
    ("a newer version", of("server", version="3.0.0-beta"), "nats.version"),
    ("exactly the payload", of("server", payload_bytes_max=917_504), "nats.payload"),
    ("another limit of letters", with_stream(DLQ, max_msgs=5), "stream.room"),
    ("old discarded, but without a limit", with_stream(RUNS, discard="old"), "stream.room"),
    ("room left", lambda f: found(messages=5)(with_stream(RUNS, max_msgs=100)(f)), "stream.room"),
    ("busy, not deaf", worker(running=("1", "2", "3", "4"), last_pull_at=NOW - 900), "worker.hearing"),
    ("gone, not deaf", worker(last_seen_at=NOW - 900, last_pull_at=NOW - 900), "worker.hearing"),
    ("not asked yet", worker(last_pull_at=None), "worker.hearing"),
    ("no jobs of that tag any more", of("queue", jobs={"gpu": 0, "default": 1}), "queue.unserved"),
    ("a fresh notice", of("keeper", notices=1, oldest_at=NOW - 10), "keeper.notices"),
    ("a run that is taken over soon", given(left_behind=(replace(RUN, heartbeat_at=NOW - 30),)), "runs.stuck"),
    ("a run that has ended", given(left_behind=(replace(RUN, status=RunState.FAILED),)), "runs.stuck"),
    ("https", gateway(url="https://api.example.com", is_open=False), "gateway.tls"),
    ("asks for a key", gateway(url=FAR, is_open=False), "gateway.open"),
    ("open here", gateway(), "gateway.open"),
    ("a disk that counts no files", disk(free_files=None), "machine.disk"),
    ("a small disk for lists", disk(is_store=False, free_bytes=2 * GIB), "machine.disk"),
]


@pytest.mark.parametrize(("change", "check"), [each[1:] for each in FINE], ids=[each[0] for each in FINE])
def test_what_is_meant_to_be_so_is_not_complained_about(change: Change, check: str) -> None:
    assert worst(of_check(diagnose(change(HEALTHY)), check)) is Level.OK


def test_the_monitoring_port_is_believed_before_the_file() -> None:
    monitor = Monitor(server_name="n1", sync_seconds=120.0, storage_bytes=99, storage_bytes_max=100, store_dir="/x")
    findings = diagnose(replace(HEALTHY, monitor=monitor))
    assert worst(of_check(findings, "nats.sync")) is WARNING
    assert worst(of_check(findings, "jetstream.storage")) is DANGER


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        (given(server=Unreachable(Trouble.NOBODY_ANSWERS, "x")), "nats.reachable", "start NATS"),
        (given(server=Unreachable(Trouble.LOGIN_REFUSED, "x")), "nats.reachable", "nats://USER:PASSWORD@HOST"),
        (given(server=Unreachable(Trouble.TLS_FAILED, "x")), "nats.reachable", "SSL_CERT_FILE"),
        (of("account", storage_bytes_max=GIB), "jetstream.storage", "limits of the account"),
        (of("machine", own_nats=replace(OWN, storage_bytes_max=GIB)), "jetstream.storage", "max_file_store"),
        (with_stream(RUNS, max_bytes=9, discard="old"), "stream.room", "--max-msgs-per-subject=1"),
        (with_stream(WORK, max_msgs=9), "stream.room", "--max-msgs-per-subject=-1"),
        (with_stream(WHEELS, allow_rollup_hdrs=False), "stream.writable", "--allow-rollup"),
        (with_stream(RUNS, sealed=True), "stream.writable", "nats stream rm KV_pyoco_runs"),
        (lane(in_hand_max=2), "queue.lanes", "PYOCO_CONSUMER_MAX_ACK_PENDING=8"),
        (lane(is_paused=True), "queue.lanes", "nats consumer resume PYOCO_WORK pyoco_worker_default"),
        (of("wishes", heartbeat_seconds=15.0), "settings.timing", "PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC=60"),
    ],
)
def test_the_fix_is_the_one_for_this_trouble(change: Change, check: str, words: str) -> None:
    assert any(words in finding.fix for finding in of_check(diagnose(change(HEALTHY)), check))


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        (worker(last_pull_at=NOW - 300), "worker.hearing", "for 5 min"),
        (found(messages=7, last_at=NOW - 60), "letters.count", "dead letters: 7; the newest came 60 s ago"),
        (lambda f: found(messages=99)(with_stream(RUNS, max_msgs=100)(f)), "stream.room", "99 of max_msgs 100"),
        (of("machine", versions={}), "worker.versions", "pyoco-server 0.6.0 everywhere"),
        (on_cluster(3, GOOD, replace(GOOD, is_current=False, silent_seconds=1.0)), "stream.peers", "behind, on n2"),
        (on_cluster(3, GOOD, GONE), "stream.peers", "away, on n4"),
        (of("queue", jobs={"gpu": 2}, oldest_at={"gpu": NOW - 720}), "queue.unserved", "2, the oldest for 12 min"),
    ],
)
def test_what_is_told_is_what_was_found(change: Change, check: str, words: str) -> None:
    told = [finding.what for finding in of_check(diagnose(change(HEALTHY)), check)]
    assert any(words in what for what in told), told


def test_only_dead_letters_are_counted_as_such() -> None:
    assert len(of_check(diagnose(found(messages=7)(HEALTHY)), "letters.count")) == 1


def test_memory_that_nobody_uses_is_not_missed() -> None:
    assert worst(of_check(diagnose(of("account", memory_bytes_max=0)(HEALTHY)), "jetstream.storage")) is Level.OK
    full = of("account", memory_bytes=9, memory_bytes_max=9)(HEALTHY)
    assert worst(of_check(diagnose(full), "jetstream.storage")) is DANGER


def test_a_node_in_trouble_is_told_once_and_not_for_each_stream() -> None:
    (found,) = of_check(diagnose(on_cluster(3, GOOD, AWAY)(HEALTHY)), "stream.peers")
    assert "on n3: PYOCO_WORK, PYOCO_DLQ" in found.what


def test_fixes_name_what_is_to_be_mended() -> None:
    findings = diagnose(with_stream(WORK, max_age=10**12)(of("queue", jobs={"it's": 1})(HEALTHY)))
    (aged,) = of_check(findings, "stream.age")
    assert aged.fix == "nats stream edit PYOCO_WORK --max-age=0s"
    (unserved,) = of_check(findings, "queue.unserved")
    assert unserved.fix == """pyoco-worker --flow-resolver MODULE:CALLABLE --tags 'it'"'"'s'"""


def test_a_setting_that_does_not_parse_is_a_finding() -> None:
    finding = settings_refused("PYOCO_X=y")
    assert (finding.check, finding.level) == (BAD_SETTING, DANGER)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("127.example.com", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_only_the_loopback_address_is_local(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_figures_are_for_the_eye() -> None:
    assert [size(n) for n in (0, 2048, 1536 * 1024, 200 * 1024**2, 5 * 1024**4)] == [
        "0 B",
        "2 KiB",
        "1.5 MiB",
        "200 MiB",
        "5.0 TiB",
    ]
    assert [age(n) for n in (0.5, 30, 120, 7200, 200_000)] == ["0.5 s", "30 s", "2 min", "2 h", "2 d"]
    assert some("abcdefg", 5) == "a, b, c, d, e and 2 more"
