"""What needs attention: a table of rules, and sentences in two languages."""

from __future__ import annotations

import random
import re
import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.attention import AttentionFacts, FindingKind, LostWorker, QueueFacts, Severity, findings
from pyoco_server.core.attention_texts import TEXTS
from pyoco_server.core.holds import Holds
from pyoco_server.core.trend import FlowEnds, Trend

NOW = 1_700_000_000.0
WELL = AttentionFacts(now=NOW)
QUEUE = QueueFacts(tag="gpu", depth=200, oldest_at=NOW - 60, workers_alive=1, depth_before=100, depth_lately=150)


def queue(**more: Any) -> AttentionFacts:
    return replace(WELL, queues=(replace(QUEUE, **more),))


def flow(ended: int, failed: int) -> AttentionFacts:
    return replace(WELL, flows=(FlowEnds("main", ended, failed),))


def lost(runs: int, *run_ids: str) -> AttentionFacts:
    return replace(WELL, lost=(LostWorker("anna", runs, run_ids),))


D, W = Severity.DANGER, Severity.WARNING


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (WELL, None),
        (replace(WELL, is_up=False), (FindingKind.NATS_DOWN, D, 1, {})),
        (replace(WELL, is_up=False, lists_true=False), (FindingKind.NATS_DOWN, D, 1, {})),
        (replace(WELL, lists_true=False), (FindingKind.INDEX_BEHIND, W, 1, {})),
        (replace(WELL, store_full=True), (FindingKind.STORE_FULL, D, 1, {"stuck": False})),
        (replace(WELL, store_full=True, store_stuck=True), (FindingKind.STORE_FULL, D, 1, {"stuck": True})),
        # Nobody serves it, and that is no matter of a restart.
        (
            queue(workers_alive=0, oldest_at=NOW - 30),
            (FindingKind.TAG_WITHOUT_WORKER, D, 200, {"tag": "gpu", "depth": 200, "oldest_at": NOW - 30}),
        ),
        (
            queue(workers_alive=0, oldest_at=NOW - 90),  # that it grows, too, says nothing more
            (FindingKind.TAG_WITHOUT_WORKER, D, 200, {"tag": "gpu", "depth": 200, "oldest_at": NOW - 90}),
        ),
        (queue(workers_alive=0, oldest_at=NOW - 29.9), None),
        (queue(workers_alive=1, oldest_at=NOW - 9000, depth_before=None), None),
        # Any worker may take them: only when there is none at all, that is told.
        (
            replace(WELL, packs=3, packs_oldest_at=NOW - 30),
            (FindingKind.PACKS_WITHOUT_WORKER, D, 3, {"depth": 3, "oldest_at": NOW - 30}),
        ),
        (replace(WELL, packs=3, packs_oldest_at=NOW - 29.9), None),
        (replace(WELL, packs=3, packs_oldest_at=NOW - 9000, workers_alive=1), None),
        # It grows: by half, by many, not on its way down, and not only just now.
        (queue(), (FindingKind.GROWING_QUEUE, W, 200, {"tag": "gpu", "depth": 200, "depth_before": 100})),
        (
            queue(depth=50, depth_before=0),
            None,  # it was longer two minutes ago
        ),
        (
            queue(depth=50, depth_before=0, depth_lately=50),
            (FindingKind.GROWING_QUEUE, W, 50, {"tag": "gpu", "depth": 50, "depth_before": 0}),
        ),
        (queue(depth=49, depth_before=0, depth_lately=0), None),
        (queue(depth=149), None),
        (queue(depth=1499, depth_before=1000, depth_lately=1200), None),
        (queue(depth_before=None), None),
        (
            queue(depth_lately=None),
            (FindingKind.GROWING_QUEUE, W, 200, {"tag": "gpu", "depth": 200, "depth_before": 100}),
        ),
        (queue(depth_lately=201), None),
        (queue(depth_lately=0, depth_peak=205), None),  # submitted in one go, and on its way down since
        (
            queue(depth_lately=0, depth_peak=203),  # a run more or less says nothing
            (FindingKind.GROWING_QUEUE, W, 200, {"tag": "gpu", "depth": 200, "depth_before": 100}),
        ),
        # Handed back, they wait like all others.
        (
            queue(workers_alive=0, depth=0, put_back=3, oldest_at=NOW - 30),
            (FindingKind.TAG_WITHOUT_WORKER, D, 3, {"tag": "gpu", "depth": 3, "oldest_at": NOW - 30}),
        ),
        (queue(depth=0, put_back=3), None),
        (queue(oldest_at=NOW - 59), None),
        # Its worker is gone; it had runs.
        (lost(2, "r1"), (FindingKind.WORKERS_LOST, D, 2, {"worker_id": "anna", "run_ids": ["r1"]})),
        (lost(0), None),
        (
            lost(12, *map(str, range(12))),
            (FindingKind.WORKERS_LOST, D, 12, {"worker_id": "anna", "run_ids": [*"0123456789"]}),
        ),
        # It fails: at least five times, and one in five.
        (flow(5, 5), (FindingKind.FAILING_FLOW, D, 5, {"flow": "main", "failed": 5, "ended": 5})),
        (flow(4, 4), None),
        (flow(10, 5), (FindingKind.FAILING_FLOW, D, 5, {"flow": "main", "failed": 5, "ended": 10})),
        (flow(11, 5), (FindingKind.FAILING_FLOW, W, 5, {"flow": "main", "failed": 5, "ended": 11})),
        (flow(25, 5), (FindingKind.FAILING_FLOW, W, 5, {"flow": "main", "failed": 5, "ended": 25})),
        (flow(26, 5), None),
        (replace(WELL, dead_letters=3), (FindingKind.DEAD_LETTERS, W, 3, {"count": 3, "new": 0})),
        (
            replace(WELL, dead_letters=30, dead_letters_new=2),
            (FindingKind.DEAD_LETTERS, W, 30, {"count": 30, "new": 2}),
        ),
        (replace(WELL, pack_dead_letters=3), (FindingKind.PACK_DEAD_LETTERS, W, 3, {})),
        (replace(WELL, differences=2, audited_at=NOW - 9), (FindingKind.MONEY_DIFFERS, D, 2, {"audited_at": NOW - 9})),
        (replace(WELL, audited_at=NOW - 9), None),
        (
            replace(WELL, disputed=("a", "b"), disputed_oldest_at=NOW - 60),
            (FindingKind.DISPUTED_RUNS, D, 2, {"run_ids": ["a", "b"], "oldest_at": NOW - 60}),
        ),
        (replace(WELL, silent_stores=("queue",)), (FindingKind.PRICED_STORES_SILENT, D, 1, {"stores": ["queue"]})),
        (
            replace(WELL, gone=(("OBJ_pyoco_wheels", Holds.WHEELS),)),  # SAFE-15
            (FindingKind.RESOURCE_LOST, D, 1, {"resource": "OBJ_pyoco_wheels", "lost": "registered wheels"}),
        ),
        (
            replace(WELL, unreadable=("a", "b")),
            (FindingKind.RECORD_UNREADABLE, D, 2, {"run_ids": ["a", "b"]}),
        ),  # SAFE-16
        (replace(WELL, stale=("a", "b")), (FindingKind.STALE_RUNS, W, 2, {"run_ids": ["a", "b"]})),
        (
            replace(WELL, overdue=("nightly",), overdue_oldest_at=NOW - 90),  # SCHED-20
            (FindingKind.SCHEDULE_OVERDUE, W, 1, {"schedules": ["nightly"], "oldest_at": NOW - 90}),
        ),
        (replace(WELL, wheel_failures=("w",)), (FindingKind.WHEEL_FAILURES, W, 1, {"worker_ids": ["w"]})),
    ],
)
def test_a_rule_finds_what_it_is_for_and_nothing_else(facts: AttentionFacts, wanted: tuple[Any, ...] | None) -> None:
    found = [(each.kind, each.level, each.count, each.facts) for each in findings(facts)]
    assert found == ([] if wanted is None else [wanted])


EVERYTHING = AttentionFacts(
    now=NOW,
    is_up=True,
    lists_true=False,
    store_full=True,
    store_stuck=True,
    queues=(QUEUE, replace(QUEUE, tag="a; rm {x}", workers_alive=0, depth=7)),
    lost=(LostWorker("anna", 3, ("r1",)),),
    flows=(FlowEnds("main", 20, 11),),
    dead_letters=1234,
    dead_letters_new=1000,
    dead_letters_new_capped=True,
    stale=("s1", "s2"),
    packs=4,
    packs_oldest_at=NOW - 60,
    overdue=("nightly", "hourly"),
    overdue_oldest_at=NOW - 600,
    wheel_failures=("w1", "w2"),
    silent_stores=("ledger", "budget", "queue", "results"),
    differences=3,
    audited_at=NOW - 60,
    disputed=("d1", "d2"),
    disputed_capped=True,
    disputed_oldest_at=NOW - 7_199,
    pack_dead_letters=5,
    gone=(("PYOCO_DLQ", Holds.DEAD_LETTERS),),
    unreadable=("u1", "u2"),
    unreadable_capped=True,
)


#: FLOW-566
SENTENCES = {
    "nats_down": (
        "This gateway has no connection to NATS: submissions are refused, and runs are not updated.",
        "このgatewayはNATSに接続できていません。runの投入はできず、状態の変化も表示されません",
    ),
    "store_full": (
        "NATS is out of storage: submissions are refused. Free disk space, and restart NATS.",
        "NATSの保存領域に空きがなく、runの投入は拒否されます。空きを作り、NATSを再起動してください",
    ),
    "resource_lost": (
        "PYOCO_DLQ is missing in NATS. Lost: dead letters. Restore a backup with: pyoco-server-admin restore "
        "--from DIR --only PYOCO_DLQ; or create it empty with: pyoco-server-admin prepare",
        "NATSの PYOCO_DLQ がありません。失われたもの: dead letter。バックアップから復元してください: "
        "pyoco-server-admin restore --from DIR --only PYOCO_DLQ。空で作り直す場合: pyoco-server-admin prepare",
    ),
    "record_unreadable": (
        "Run records cannot be read: 2 or more. The first: u1. Restore a backup, or remove it with: "
        "pyoco-server-admin run discard u1",
        "読み取れないrunの記録があります: 2件以上。最初のもの: u1。バックアップから復元するか、"
        "次のコマンドで削除してください: pyoco-server-admin run discard u1",
    ),
    "index_behind": (
        "Lists of this gateway are incomplete or unavailable: its index is being built, is too slow, or receives "
        "no changes.",
        "このgatewayの一覧は現在正確ではないか、読み取れません。索引を作成中か、応答が遅いか、変更を受信できていません",
    ),
    "priced_stores_silent": (
        "Priced runs are impaired: no response from the ledger, the budgets in Redis, the queue, the result "
        "store. For details run: pyoco-server doctor",
        "課金runの保存先が応答していません: 台帳、予算 (Redis)、キュー、結果の保存先。"
        "詳細は次のコマンドで確認してください: pyoco-server doctor",
    ),
    "money_differs": (
        "Balances do not add up. Differences in the last audit: 3. Show them with: pyoco-server-admin budget verify",
        "金額が一致していません。直近の監査で見つかった差異: 3件。次のコマンドで確認してください: "
        "pyoco-server-admin budget verify",
    ),
    "disputed_runs": (
        "Disputed priced runs wait for your decision: 2 or more. The oldest has waited 119 min. List them with: "
        "pyoco-server-admin budget disputes",
        "金額の記録が矛盾し、判断を待っている課金runがあります: 2件以上。最も古いもの: 119分前から。"
        "次のコマンドで一覧できます: pyoco-server-admin budget disputes",
    ),
    "pack_letters": (
        "Dead letters of priced runs: 5. List them with: pyoco-server-admin packs letters",
        "課金runのデッドレターがあります: 5件。次のコマンドで確認してください: pyoco-server-admin packs letters",
    ),
    "tag_without_worker": (
        "No worker serves tag a; rm {x}. Waiting: 7. Start one with: "
        "pyoco-worker --flow-resolver MODULE:CALLABLE --tags 'a; rm {x}'",
        "タグ a; rm {x} を担当するworkerがいません。待機中: 7件。次のコマンドで起動してください: "
        "pyoco-worker --flow-resolver MODULE:CALLABLE --tags 'a; rm {x}'",
    ),
    "packs_without_worker": (
        "Priced runs are waiting, and no worker is alive. Waiting: 4.",
        "課金runが待っていますが、実行するworkerがいません。待機中: 4件",
    ),
    "workers_lost": (
        "Worker anna stopped responding while it executed runs. Affected runs: 3. Another worker takes them over "
        "when their claim expires.",
        "worker anna がrunを実行したまま応答していません。実行中だったrun: 3件。"
        "占有期限が切れると別のworkerが引き継ぎます",
    ),
    "failing_flow": (
        "Flow main is failing: 11 of 20 runs in the last 15 minutes.",
        "フロー main が失敗しています。直近15分間の失敗: 11/20件",
    ),
    "growing_queue": (
        "The queue of tag gpu is growing. Waiting: 200; 10 minutes ago: 100. Add workers or slots.",
        "タグ gpu のキューが伸びています。待機中: 200件、10分前: 100件。workerまたはスロットの追加を検討してください",
    ),
    "dead_letters": (
        "1234 failed runs need a decision (1000 or more new in the last hour). Redrive or delete them.",
        "失敗したrunの対応が必要です: 1234件（直近1時間の新着: 1000件以上）。再投入するか削除してください",
    ),
    "stale_runs": (
        "RUNNING runs without a recent heartbeat: 2.",
        "RUNNINGのまま更新が途絶えているrunがあります: 2件",
    ),
    "schedule_overdue": (
        "Schedules whose tick is due and not handled: 2. The first: nightly, due for 10 min. Check that a keeper runs.",
        "予定時刻を過ぎても処理されていないスケジュールがあります: 2件。最初のもの: nightly（10分前から）。"
        "keeperが動作しているか確認してください",
    ),
    "wheel_failures": (
        "Workers that failed to install a wheel: 2. Their records show which wheel, and why.",
        "wheelをインストールできなかったworkerがいます: 2台。wheel名と理由はworkerの情報を確認してください",
    ),
}


def test_every_kind_is_told_in_both_languages() -> None:
    """FLOW-566"""
    found = findings(EVERYTHING) + findings(replace(WELL, is_up=False))
    assert {each.kind: (each.message, each.message_ja) for each in found} == SENTENCES
    assert SENTENCES.keys() == set(FindingKind), "a kind without a rule"


@pytest.mark.parametrize("kind", FindingKind)
def test_both_sentences_of_a_kind_say_the_same_things(kind: FindingKind) -> None:
    """Each names the same figures; `x_ja` is the Japanese form of `x`."""
    english, japanese = (
        {name.removesuffix("_ja") for _, name, _, _ in string.Formatter().parse(text) if name} for text in TEXTS[kind]
    )
    assert english == japanese
    assert re.search("[ぁ-ん]", TEXTS[kind][1])
    assert TEXTS[kind][0].isascii()


def test_dangers_come_first_and_then_what_may_be_the_cause() -> None:
    found = findings(replace(EVERYTHING, flows=(FlowEnds("main", 100, 30), FlowEnds("other", 6, 6))))
    assert [(each.level, each.kind) for each in found] == [
        (D, FindingKind.STORE_FULL),
        (D, FindingKind.RESOURCE_LOST),
        (D, FindingKind.PRICED_STORES_SILENT),
        (D, FindingKind.MONEY_DIFFERS),
        (D, FindingKind.DISPUTED_RUNS),
        (D, FindingKind.RECORD_UNREADABLE),
        (D, FindingKind.TAG_WITHOUT_WORKER),
        (D, FindingKind.PACKS_WITHOUT_WORKER),
        (D, FindingKind.WORKERS_LOST),
        (D, FindingKind.FAILING_FLOW),
        (W, FindingKind.INDEX_BEHIND),
        (W, FindingKind.FAILING_FLOW),
        (W, FindingKind.GROWING_QUEUE),
        (W, FindingKind.DEAD_LETTERS),
        (W, FindingKind.PACK_DEAD_LETTERS),
        (W, FindingKind.STALE_RUNS),
        (W, FindingKind.SCHEDULE_OVERDUE),
        (W, FindingKind.WHEEL_FAILURES),
    ]


def test_no_kind_pushes_out_the_others() -> None:
    many = replace(
        EVERYTHING,
        queues=tuple(
            replace(QUEUE, tag=f"{kind}{number}", depth=200 + number, workers_alive=kind == "a")
            for number in range(500)
            for kind in "ab"
        ),
        lost=tuple(LostWorker(f"w{number}", 1, ()) for number in range(500)),
        flows=tuple(FlowEnds(f"f{number}", 100, number) for number in range(100)),
    )
    found = findings(many)
    assert len(found) <= 50
    assert {each.kind for each in found} == set(FindingKind) - {FindingKind.NATS_DOWN}
    assert [each.facts["flow"] for each in found if each.kind is FindingKind.FAILING_FLOW] == [
        f"f{99 - n}" for n in range(7)
    ]
    assert next(each.facts["tag"] for each in found if "tag" in each.facts) == "b499"


@pytest.mark.parametrize(
    ("seconds", "told"), [(-5, "0 min"), (90, "1 min"), (7_200, "2 h"), (172_799, "47 h"), (172_800, "2 days")]
)
def test_how_long_a_dispute_waits_is_told_as_exactly_as_somebody_wants_to_know(seconds: float, told: str) -> None:
    (found,) = findings(replace(WELL, disputed=("a",), disputed_oldest_at=NOW - seconds))
    assert f"has waited {told}." in found.message


def test_only_ten_are_named_and_all_are_counted() -> None:
    names = tuple(f"n{number}" for number in range(100))
    found = findings(replace(WELL, stale=names, stale_capped=True, wheel_failures=names))
    assert [each.count for each in found] == [100, 100]
    assert [list(each.facts.values()) for each in found] == [[list(names[:10])]] * 2
    assert found[0].message.endswith(": 100 or more.")


@given(st.text(max_size=20), st.text(max_size=20))
def test_names_of_any_letters_are_told_as_they_are(tag: str, name: str) -> None:
    """A stranger's record may hold one: braces are no places to fill."""
    facts = replace(
        EVERYTHING,
        queues=(replace(QUEUE, tag=tag, workers_alive=0), replace(QUEUE, tag=tag)),
        lost=(LostWorker(name, 1, (name,)),),
        flows=(FlowEnds(name, 9, 9),),
    )
    for each in findings(facts):
        assert tag in each.message or "tag" not in each.facts
        assert name in each.message_ja or not {"flow", "worker_id"} & each.facts.keys()


def growing(depths: list[int], oldest: int) -> list[int]:
    """The seconds at which a queue is told to grow that is looked at every five of them; `oldest`: since when what
    waits has waited."""
    trend, begin, told = Trend(), NOW // 60 * 60, []
    for second, depth in zip(range(0, 5 * len(depths), 5), depths, strict=True):
        now = begin + second
        trend.sample(now, 4, depth, {"a": depth} if depth else {})
        drain = trend.drain(now, "a")
        seen = QueueFacts(
            tag="a",
            depth=depth,
            oldest_at=begin + oldest,
            workers_alive=4,
            depth_before=drain.depth_before,
            depth_lately=drain.depth_lately,
            depth_peak=drain.depth_peak,
        )
        if depth and findings(replace(WELL, now=now, queues=(seen,))):
            told.append(second)
    return told


@pytest.mark.parametrize("burst_at", range(1200, 1260, 5))
def test_a_burst_that_is_being_worked_off_needs_nobody(burst_at: int) -> None:
    """Wherever in a minute it comes"""
    depths = [max(0, 10_000 - 20 * (second - burst_at)) * (second >= burst_at) for second in range(0, 2400, 5)]
    assert growing(depths, burst_at) == []


def test_a_burst_that_stands_still_or_a_queue_that_only_grows_is_told() -> None:
    assert growing([10_000 * (second >= 1200) for second in range(0, 1800, 5)], 1200) == list(range(1260, 1800, 5))
    dice = random.Random(5)
    depths = [second // 6 + dice.randrange(4) for second in range(0, 3000, 5)]
    told = growing(depths, 0)
    assert told[0] == 600, "as soon as it is known what was ten minutes ago"
    assert len(told) > 0.9 * len(range(600, 1800, 5)), "until it is longer by less than half"
