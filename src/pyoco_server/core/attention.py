"""Findings that need attention: derived from the facts of a deployment, rendered as sentences, most urgent first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pyoco_server.core.attention_texts import TEXTS, FindingKind
from pyoco_server.core.holds import LOST, Holds
from pyoco_server.core.trend import FLOW_MINUTES, QUEUE_MINUTES, FlowEnds
from pyoco_server.core.waiting import STARTING_SECONDS_MAX, start_command

__all__ = [
    "FINDINGS_MAX",
    "NAMES_MAX",
    "AttentionFacts",
    "AttentionFinding",
    "FindingKind",
    "LostWorker",
    "QueueFacts",
    "Severity",
    "findings",
]

FINDINGS_MAX = 50
#: At most this many findings of one kind, the worst first; more would crowd out the other kinds. Thirteen of the
#: eighteen kinds yield one finding at most: 5 * 7 + 13 is below FINDINGS_MAX.
_OF_A_KIND_MAX = 7
#: How many run ids and worker ids one finding lists.
NAMES_MAX = 10

#: How long a run may wait with a free slot before that is unusual: long enough for a worker to restart.
_UNSERVED_SECONDS = STARTING_SECONDS_MAX
#: Fewer failures may be one person experimenting.
_FAILURES_MIN = 5
#: A flaky network causes fewer failures than one in five; from one in two on, the flow is broken.
_FAILURES_WARNING, _FAILURES_DANGER = 0.2, 0.5
#: A queue is growing if it became half as long again, by more runs than a person would submit by hand, and is not
#: shrinking again. A batch that was submitted in one go and is being worked off needs no attention.
_GROWTH_RATIO, _GROWTH_MIN = 1.5, 50
#: A drop of this size within a minute is no coincidence: the queue is shrinking.
_DRAINING_RATIO = 0.98
#: A queue whose oldest run has waited less than this is a short burst.
_GROWTH_SECONDS = 60.0


class Severity(StrEnum):
    """The severity of a finding."""

    #: Work is lost or blocked, and this will not change by itself.
    DANGER = "danger"
    #: Work continues, but a person should check.
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class QueueFacts:
    """A tag with waiting runs."""

    tag: str
    #: PENDING runs.
    depth: int
    #: When the oldest waiting run of the tag began to wait.
    oldest_at: float
    workers_alive: int
    #: Runs that a worker handed back and that no other worker has taken for a while. They wait for the same tag.
    put_back: int = 0
    #: PENDING runs ten minutes ago, two minutes ago, and the peak of this minute and the one before. None: not known.
    depth_before: int | None = None
    depth_lately: int | None = None
    depth_peak: int | None = None


@dataclass(frozen=True)
class LostWorker:
    """A worker without heartbeats, the number of runs it still owns, and those of them that the caller may see."""

    worker_id: str
    runs: int
    run_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AttentionFacts:
    """The input of the rules. What could not be determined is empty."""

    now: float
    is_up: bool = True
    store_full: bool = False
    #: The store is full, and only a restart of NATS helps.
    store_stuck: bool = False
    #: Resources that are missing in NATS, and what they contained.
    gone: tuple[tuple[str, Holds], ...] = ()
    #: Runs whose records cannot be read.
    unreadable: tuple[str, ...] = ()
    #: There are more: counting stopped there.
    unreadable_capped: bool = False
    lists_true: bool = True
    queues: tuple[QueueFacts, ...] = ()
    #: Waiting priced runs, and when the first of them began to wait. Any worker may take them.
    packs: int = 0
    packs_oldest_at: float = 0.0
    workers_alive: int = 0
    lost: tuple[LostWorker, ...] = ()
    flows: tuple[FlowEnds, ...] = ()
    dead_letters: int = 0
    #: Dead letters of the last hour.
    dead_letters_new: int = 0
    #: There are more new ones: counting stopped there.
    dead_letters_new_capped: bool = False
    #: Stores of priced runs that do not answer.
    silent_stores: tuple[str, ...] = ()
    #: Differences found by the last audit, and its time.
    differences: int = 0
    audited_at: float = 0.0
    #: Disputed priced runs, oldest first.
    disputed: tuple[str, ...] = ()
    #: There are more: counting stopped there.
    disputed_capped: bool = False
    disputed_oldest_at: float = 0.0
    #: Dead letters of priced runs, approximately.
    pack_dead_letters: int = 0
    #: RUNNING and owned, without a heartbeat for longer than FLOW-30 allows.
    stale: tuple[str, ...] = ()
    stale_capped: bool = False
    #: Names of schedules whose tick is due and not handled, longest first; and since when the first one is.
    overdue: tuple[str, ...] = ()
    overdue_oldest_at: float = 0.0
    wheel_failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttentionFinding:
    """One thing that needs attention."""

    kind: FindingKind
    level: Severity
    #: How many runs, letters or workers are affected; 1 if there is nothing to count.
    count: int
    message: str
    message_ja: str
    facts: dict[str, Any]


def findings(facts: AttentionFacts) -> list[AttentionFinding]:
    """Apply all rules: dangers before warnings, each in the order of their kinds, the largest first. O(facts)."""
    found: list[AttentionFinding] = []
    for rule in _RULES:
        of_a_kind = sorted(rule(facts), key=lambda each: (_LEVELS[each.level], -each.count, each.message))
        found += of_a_kind[:_OF_A_KIND_MAX]
    found.sort(key=lambda each: _LEVELS[each.level])
    return found[:FINDINGS_MAX]


_LEVELS = {level: place for place, level in enumerate(Severity)}


def _finding(
    kind: FindingKind, level: Severity, count: int, facts: dict[str, Any], **values: object
) -> AttentionFinding:
    english, japanese = TEXTS[kind]
    values = {**facts, **values}
    return AttentionFinding(kind, level, count, english.format(**values), japanese.format(**values), facts)


def _nats(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    if not facts.is_up:
        yield _finding(FindingKind.NATS_DOWN, Severity.DANGER, 1, {})


def _store(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    if facts.store_full:
        advice = "Free disk space, and restart NATS." if facts.store_stuck else "Free disk space."
        advice_ja = "空きを作り、NATSを再起動してください" if facts.store_stuck else "空きを作ってください"
        details = {"stuck": facts.store_stuck}
        yield _finding(FindingKind.STORE_FULL, Severity.DANGER, 1, details, advice=advice, advice_ja=advice_ja)


def _gone(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    """SAFE-15: resources that are missing in NATS."""
    for name, holds in facts.gone:
        lost, lost_ja = LOST[holds]
        details = {"resource": name, "lost": lost}
        yield _finding(FindingKind.RESOURCE_LOST, Severity.DANGER, 1, details, lost_ja=lost_ja)


def _unreadable(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    """SAFE-16: run records that cannot be decoded."""
    if facts.unreadable:
        unreadable, unreadable_ja = _some(len(facts.unreadable), facts.unreadable_capped)
        details = {"run_ids": list(facts.unreadable[:NAMES_MAX])}
        values = {"unreadable": unreadable, "unreadable_ja": unreadable_ja, "run_id": facts.unreadable[0]}
        yield _finding(FindingKind.RECORD_UNREADABLE, Severity.DANGER, len(facts.unreadable), details, **values)


def _index(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    """Skipped without NATS: the lists cannot change then, and NATS_DOWN is already reported."""
    if facts.is_up and not facts.lists_true:
        yield _finding(FindingKind.INDEX_BEHIND, Severity.WARNING, 1, {})


def _stores(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    if facts.silent_stores:
        details = {"stores": list(facts.silent_stores)}
        names = ", ".join(f"the {_STORES[each][0]}" for each in facts.silent_stores)
        names_ja = "、".join(_STORES[each][1] for each in facts.silent_stores)
        count = len(facts.silent_stores)
        yield _finding(
            FindingKind.PRICED_STORES_SILENT, Severity.DANGER, count, details, names=names, names_ja=names_ja
        )


_STORES = {
    "ledger": ("ledger", "台帳"),
    "budget": ("budgets in Redis", "予算 (Redis)"),
    "queue": ("queue", "キュー"),
    "results": ("result store", "結果の保存先"),
}


def _differing(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    if facts.differences:
        details = {"audited_at": facts.audited_at}
        yield _finding(
            FindingKind.MONEY_DIFFERS, Severity.DANGER, facts.differences, details, differences=facts.differences
        )


def _disputed(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    if facts.disputed:
        disputed, disputed_ja = _some(len(facts.disputed), facts.disputed_capped)
        details = {"run_ids": list(facts.disputed[:NAMES_MAX]), "oldest_at": facts.disputed_oldest_at}
        since, since_ja = _since(facts.now - facts.disputed_oldest_at)
        values = {"disputed": disputed, "disputed_ja": disputed_ja, "since": since, "since_ja": since_ja}
        yield _finding(FindingKind.DISPUTED_RUNS, Severity.DANGER, len(facts.disputed), details, **values)


def _since(seconds: float) -> tuple[str, str]:
    """Format a duration with useful precision."""
    minutes = max(0, int(seconds // 60))
    if minutes < 120:
        return f"{minutes} min", f"{minutes}分前から"
    hours = minutes // 60
    return (f"{hours} h", f"{hours}時間前から") if hours < 48 else (f"{hours // 24} days", f"{hours // 24}日前から")


def _is_unserved(facts: AttentionFacts, queue: QueueFacts) -> bool:
    return not queue.workers_alive and facts.now - queue.oldest_at >= _UNSERVED_SECONDS


def _unserved(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    for queue in facts.queues:
        depth = queue.depth + queue.put_back
        if depth and _is_unserved(facts, queue):
            details = {"tag": queue.tag, "depth": depth, "oldest_at": queue.oldest_at}
            yield _finding(
                FindingKind.TAG_WITHOUT_WORKER, Severity.DANGER, depth, details, command=start_command(queue.tag)
            )


def _unserved_packs(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    if facts.packs and not facts.workers_alive and facts.now - facts.packs_oldest_at >= _UNSERVED_SECONDS:
        details = {"depth": facts.packs, "oldest_at": facts.packs_oldest_at}
        yield _finding(FindingKind.PACKS_WITHOUT_WORKER, Severity.DANGER, facts.packs, details)


def _lost(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    """A danger although other workers take the runs over: that takes half a minute and an attempt, and a machine is
    lost."""
    for worker in facts.lost:
        if worker.runs:
            details = {"worker_id": worker.worker_id, "run_ids": list(worker.run_ids[:NAMES_MAX])}
            yield _finding(FindingKind.WORKERS_LOST, Severity.DANGER, worker.runs, details, runs=worker.runs)


def _failing(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    for each in facts.flows:
        if each.failed >= _FAILURES_MIN and each.failed >= _FAILURES_WARNING * each.ended:
            level = Severity.DANGER if each.failed >= _FAILURES_DANGER * each.ended else Severity.WARNING
            details = {"flow": each.flow, "failed": each.failed, "ended": each.ended}
            yield _finding(FindingKind.FAILING_FLOW, level, each.failed, details, minutes=FLOW_MINUTES)


def _growing(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    for queue in facts.queues:
        before = queue.depth_before
        if before is None or _is_unserved(facts, queue):  # no worker: reported already
            continue
        has_grown = queue.depth >= max(before * _GROWTH_RATIO, before + _GROWTH_MIN)
        if has_grown and not _is_draining(queue) and facts.now - queue.oldest_at >= _GROWTH_SECONDS:
            details = {"tag": queue.tag, "depth": queue.depth, "depth_before": before}
            yield _finding(FindingKind.GROWING_QUEUE, Severity.WARNING, queue.depth, details, minutes=QUEUE_MINUTES)


def _is_draining(queue: QueueFacts) -> bool:
    """A batch that was submitted in one go falls below its peak long before it falls below its depth two minutes
    ago."""
    if queue.depth_lately is not None and queue.depth < queue.depth_lately:
        return True
    return queue.depth_peak is not None and queue.depth <= _DRAINING_RATIO * queue.depth_peak


def _dead_letters(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    """Old letters count too: they expire unnoticed, and cannot be redriven afterwards."""
    if facts.dead_letters:
        details = {"count": facts.dead_letters, "new": facts.dead_letters_new}
        new, new_ja = _some(facts.dead_letters_new, facts.dead_letters_new_capped)
        # The values in `facts` are numbers; those in the sentence are text.
        failed = "1 failed run needs" if facts.dead_letters == 1 else f"{facts.dead_letters} failed runs need"
        failed_ja = f"{facts.dead_letters}件"
        values = {"letters": f"{failed} a decision", "letters_ja": failed_ja, "new": new, "new_ja": new_ja}
        yield _finding(FindingKind.DEAD_LETTERS, Severity.WARNING, facts.dead_letters, details, **values)


def _pack_dead_letters(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    if facts.pack_dead_letters:
        yield _finding(
            FindingKind.PACK_DEAD_LETTERS,
            Severity.WARNING,
            facts.pack_dead_letters,
            {},
            letters=facts.pack_dead_letters,
        )


def _stale(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    if facts.stale:
        stale, stale_ja = _some(len(facts.stale), facts.stale_capped)
        details = {"run_ids": list(facts.stale[:NAMES_MAX])}
        yield _finding(
            FindingKind.STALE_RUNS, Severity.WARNING, len(facts.stale), details, stale=stale, stale_ja=stale_ja
        )


def _overdue(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    """SCHED-20"""
    schedules = len(facts.overdue)
    if schedules:
        details = {"schedules": list(facts.overdue[:NAMES_MAX]), "oldest_at": facts.overdue_oldest_at}
        since, since_ja = _since(facts.now - facts.overdue_oldest_at)
        values = {"schedule": facts.overdue[0], "since": since, "since_ja": since_ja}
        yield _finding(
            FindingKind.SCHEDULE_OVERDUE, Severity.WARNING, schedules, details, **(values | {"schedules": schedules})
        )


def _wheels(facts: AttentionFacts) -> Iterator[AttentionFinding]:
    workers = len(facts.wheel_failures)
    if workers:
        details = {"worker_ids": list(facts.wheel_failures[:NAMES_MAX])}
        yield _finding(FindingKind.WHEEL_FAILURES, Severity.WARNING, workers, details, workers=workers)


def _some(count: int, capped: bool) -> tuple[str, str]:
    return (f"{count} or more", f"{count}件以上") if capped else (str(count), f"{count}件")


#: In the order of the kinds.
_RULES = (
    *(
        _nats,
        _store,
        _gone,
        _index,
        _stores,
        _differing,
        _disputed,
        _unreadable,
        _unserved,
        _unserved_packs,
        _lost,
        _failing,
        _growing,
    ),
    *(_dead_letters, _pack_dead_letters, _stale, _overdue, _wheels),
)
