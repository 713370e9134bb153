"""One deployment for each finding of the doctor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.core.diagnosis import CHECKS, Level, diagnose, worst
from pyoco_server.core.diagnosis.facts import (
    MISSING,
    MachineFacts,
    Off,
    Orphans,
    Trouble,
    Unknown,
    Unreachable,
    Unreadable,
    Workers,
)
from pyoco_server.core.diagnosis.priced_facts import Absent, Redis, Sqs
from pyoco_server.core.states import RunState
from support.diagnosis_facts import (
    ANNA,
    AWAY,
    DANGER,
    DLQ,
    FAR,
    GIB,
    GONE,
    GOOD,
    HEALTHY,
    LEDGER,
    LEDGER_ID,
    NOTE,
    NOW,
    OWN,
    RUN,
    RUNS,
    WARNING,
    WHEELS,
    WISHES,
    WORK,
    Change,
    disk,
    found,
    gateway,
    given,
    money,
    of,
    of_check,
    on_cluster,
    packs,
    tag_queue,
    with_stream,
    worker,
)


def with_state(name: str, state: Any) -> Change:
    return lambda facts: replace(
        facts, streams=tuple(replace(each, state=state) if each.name == name else each for each in facts.streams)
    )


def ledger(**more: Any) -> Change:
    return money(ledger=replace(LEDGER, **more))


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
    ("default sync", given(machine=MachineFacts(own_nats=replace(OWN, sync_seconds=120.0))), "nats.sync", WARNING),
    ("sync unseen", given(machine=MachineFacts()), "nats.sync", NOTE),
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
    ("paused", tag_queue(is_paused=True), "queue.lanes", DANGER),
    ("few deliveries", tag_queue(max_deliver=3), "queue.lanes", WARNING),
    ("narrow", tag_queue(in_hand_max=2), "queue.lanes", WARNING),
    ("other ack wait", tag_queue(ack_wait_seconds=60.0), "queue.lanes", NOTE),
    ("stranger", of("queue", strangers=("audit",)), "queue.strangers", DANGER),
    ("storm", tag_queue(repeated=50), "queue.repeats", WARNING),
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
    ("damaged record", given(unreadable=Unreadable((RUN.run_id,), 5)), "runs.readable", DANGER),  # SAFE-16
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
    ("another ledger", ledger(ledger_id="another"), "ledger.identity", DANGER),
    ("a ledger without an id", ledger(ledger_id=None), "ledger.identity", DANGER),
    ("the ledger is gone", money(ledger=Absent("/data/ledger.db")), "ledger.identity", DANGER),
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
        lambda facts: found(messages=2)(money(sqs=None, dead_letters_stream=DLQ)(facts)),
        "packs.letters",
        NOTE,
    ),
    ("packs that do not work", packs(left_out=(("words", "words 1.0", "it raises"),)), "packs.installed", WARNING),
    ("no such pack", packs(strangers=("wrods",)), "packs.installed", DANGER),
    ("a pack of gateways alone", packs(offered=("decision", "ocr", "words")), "packs.executed", WARNING),
    ("a pack that is left out there", worker(packs=("decision",)), "packs.executed", WARNING),
    ("no pack at all there", worker(packs=()), "packs.executed", WARNING),
    ("no engine there", worker(packs=("decision",), packs_missing={"ocr": "no engine"}), "packs.executed", WARNING),
    ("a file of packs", packs(bad_files=("PYOCO_URL_PACK_CA_FILE: no file",)), "packs.files", DANGER),
    ("no Korean", packs(ocr_languages=("eng",)), "packs.ocr", NOTE),
    ("silent engine", packs(ocr_languages=Unknown("no answer")), "packs.ocr", NOTE),
    ("nobody reads", packs(ocr_engine=None), "packs.ocr", NOTE),
    ("a hole for tests", packs(test_allow="127.0.0.1:8443"), "packs.test_allow", DANGER),
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
    ("old setting", of("machine", unused={"EXEC_IDLE_SEC": "fixed"}), "settings.unused", NOTE),
    ("test setting", of("machine", for_tests=("PYOCO_TEST_SETTINGS",)), "settings.tests", DANGER),
    ("typo", of("machine", typos={"PYOCO_NATSURL": "PYOCO_NATS_URL"}), "settings.typos", WARNING),
    ("tiny disk", disk(free_bytes=100 * 1024**2), "machine.disk", DANGER),
    ("small disk", disk(free_bytes=2 * GIB), "machine.disk", WARNING),
    ("no more files", disk(free_files=3), "machine.disk", DANGER),
    ("full ledger", disk(purpose="ledger", is_store=False, free_bytes=10 * 1024**2), "machine.disk", DANGER),
    ("tiny folder", disk(is_store=False, free_bytes=10 * 1024**2), "machine.disk", DANGER),
    ("disk unseen", of("machine", disks=(Unknown("gone"),)), "machine.disk", NOTE),
]


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


def test_both_ids_and_the_way_out_are_told_where_the_ledger_is_another() -> None:
    """SAFE-12"""
    (finding,) = of_check(diagnose(ledger(ledger_id="another")(HEALTHY)), "ledger.identity")
    assert "another" in finding.what
    assert LEDGER_ID in finding.what
    assert "pyoco-server-admin ledger adopt" in finding.fix


@pytest.mark.parametrize("remembered", [None, Unknown("no answer")], ids=["none", "unknown"])
def test_without_a_remembered_ledger_none_is_the_wrong_one(remembered: Unknown | None) -> None:
    assert of_check(diagnose(replace(HEALTHY, remembered_ledger=remembered)), "ledger.identity") == []


def test_every_check_has_something_it_notices() -> None:
    assert {check.id for check in CHECKS} - {each[2] for each in SICK} == {"machine.software"}
