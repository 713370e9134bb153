"""The doctor's rules: facts in, findings out. No server, no clock."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.diagnosis import BAD_SETTING, CHECKS, Level, diagnose, settings_refused, worst
from pyoco_server.core.diagnosis.facts import (
    MISSING,
    Facts,
    MachineFacts,
    Monitor,
    Trouble,
    Unknown,
    Unreachable,
    WaitingRuns,
    Workers,
)
from pyoco_server.core.diagnosis.finding import age, size, some
from pyoco_server.core.diagnosis.nats import is_local
from pyoco_server.core.diagnosis.priced_facts import Absent
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
    NOTE,
    NOW,
    OWN,
    RUN,
    RUNS,
    STREAMS,
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

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "doctor.md"


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
        "settings.unused",
        "settings.tests",
    }
    elsewhere = {"stream.peers", "gateway.ready", "gateway.open", "gateway.tls"}
    assert {check.id for check in CHECKS} - said == quiet | elsewhere


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
        "machine": MachineFacts(),
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
        (tag_queue(in_hand_max=2), "queue.lanes", "PYOCO_CONSUMER_MAX_ACK_PENDING=8"),
        (tag_queue(is_paused=True), "queue.lanes", "nats consumer resume PYOCO_WORK pyoco_worker_default"),
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
        (on_cluster(3, GOOD, GONE), "stream.peers", "offline, on n4"),
        (of("queue", jobs={"gpu": 2}, oldest_at={"gpu": NOW - 720}), "queue.unserved", "2, the oldest for 12 min"),
    ],
)
def test_what_is_told_is_what_was_found(change: Change, check: str, words: str) -> None:
    told = [finding.what for finding in of_check(diagnose(change(HEALTHY)), check)]
    assert any(words in what for what in told), told


def test_waiting_runs_are_those_that_the_gateway_lists() -> None:
    """CLI-20: jobs of cancelled runs stay in the stream until a worker takes them, and are no waiting runs."""
    facts = of("queue", jobs={"gpu": 4, "old": 2, "default": 3})(HEALTHY)
    listed = {"gpu": WaitingRuns(1, NOW - 720), "old": WaitingRuns(0, None), "default": WaitingRuns(0, None)}
    told = [each.what for each in of_check(diagnose(gateway(waiting=listed)(facts)), "queue.unserved")]
    assert told == ["no worker takes the jobs of tag gpu; waiting: 1, the oldest for 12 min"]
    served = gateway(waiting={"default": WaitingRuns(2, NOW)})(facts)
    assert [each.what for each in of_check(diagnose(served), "queue.unserved")] == [
        "jobs in the queue: 2; every tag has a worker"
    ]
    assert len(of_check(diagnose(facts), "queue.unserved")) == 2


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
