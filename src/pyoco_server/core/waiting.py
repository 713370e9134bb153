"""Explains why a run has not started, from the facts about its queue and its workers."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum

from pyoco_server.core.delays import WaitsFor, instant_text
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.core.states.priced import Money

__all__ = [
    "STARTING_SECONDS_MAX",
    "PackQueueing",
    "Queueing",
    "WaitReason",
    "is_disputed",
    "start_command",
    "tell",
    "tell_disputed",
    "tell_pack",
    "tell_time",
    "waits",
    "why",
    "why_pack",
]

#: A run that could start but has not done so for this long is no longer reported as about to start. Longer than the
#: redelivery delay of a postponed job.
STARTING_SECONDS_MAX = 30.0


class WaitReason(StrEnum):
    """Why a run that no worker executes has to wait."""

    #: No worker with its tag is known. Packs: no worker at all, or none that executes the pack.
    NO_WORKER = "no_worker"
    #: Workers with its tag are known, but each of them has stopped or sends no heartbeats.
    WORKERS_DISCONNECTED = "workers_disconnected"
    #: No run is ahead of it, but every slot of the workers is busy.
    BUSY = "busy"
    #: More runs with its tag were submitted earlier than there are free slots.
    QUEUE = "queue"
    #: There is a free slot for it: it should start at any moment.
    STARTING = "starting"
    #: There has been a free slot for a while, and still it has not started.
    UNCLEAR = "unclear"
    #: Packs: the facts about its money contradict each other, and an operator has to decide.
    DISPUTED = "disputed"
    #: Programs: its client has reached its maximum number of jobs in flight.
    AT_CAP = "at_cap"
    #: Its caller or its schedule requested a later start (DELAY-4).
    SCHEDULED = "scheduled"
    #: A try failed, or the attempt of a program was lost, and the next one is due later.
    RETRY = "retry"


@dataclass(frozen=True, kw_only=True)
class Queueing:
    """The facts about a waiting run's queue and workers."""

    tag: str
    #: Seconds since it was submitted or handed back.
    waited_seconds: float
    #: Waiting runs of its tag that are ahead of it.
    ahead: int
    #: There are more: counting stopped there.
    ahead_capped: bool
    #: Workers with its tag: alive, and known but stopped or without heartbeats.
    workers_alive: int
    workers_gone: int
    #: Total slots of the live workers.
    slots: int
    slots_busy: int


@dataclass(frozen=True, kw_only=True)
class PackQueueing:
    """The facts about a waiting pack's queue and workers.

    Any worker that has the pack may take it, and packs have slots of their own: neither tags nor the slots of flows
    determine when it starts.
    """

    pack_type: str
    waited_seconds: float
    #: Packs that are ahead of it.
    ahead: int
    ahead_capped: bool
    #: All workers: alive, and known but stopped or without heartbeats.
    workers_alive: int
    workers_gone: int
    #: Live workers that execute this pack, or do not report their packs.
    workers_serving: int
    #: What live workers lack to execute it, as they report.
    missing: tuple[str, ...] = ()


def waits(run: Run) -> bool:
    """Return whether the run is waiting: no worker executes it, and the queue or an operator has to act.

    True for every PENDING run, and for a RUNNING one without a worker, which a worker of an earlier version has put
    back. A cancelled run does not wait: the keeper ends it. Nor does a started pack, unless it is disputed: packs are
    never put back, and their records do not name their worker.
    """
    if run.is_pack:
        return run.status is RunState.PENDING or is_disputed(run)
    if run.is_exec:  # a run that was put back still names its last worker
        return run.status is RunState.PENDING
    return run.worker_id is None and run.status in (RunState.PENDING, RunState.RUNNING)


def is_disputed(run: Run) -> bool:
    """Return whether the pack is blocked until an operator ends it, whatever its status."""
    return run.is_pack and not run.is_terminal and run.extra.get("money_state") == Money.DISPUTED


def why(facts: Queueing) -> WaitReason:
    """Return the one thing that has to change first for the run to start."""
    if facts.workers_alive == 0:
        return WaitReason.WORKERS_DISCONNECTED if facts.workers_gone else WaitReason.NO_WORKER
    if facts.ahead < facts.slots - facts.slots_busy:
        return WaitReason.STARTING if facts.waited_seconds <= STARTING_SECONDS_MAX else WaitReason.UNCLEAR
    return WaitReason.QUEUE if facts.ahead else WaitReason.BUSY


def why_pack(facts: PackQueueing) -> WaitReason:
    """Return the same for a pack."""
    if facts.workers_alive == 0:
        return WaitReason.WORKERS_DISCONNECTED if facts.workers_gone else WaitReason.NO_WORKER
    if facts.workers_serving == 0:
        return WaitReason.NO_WORKER
    if facts.ahead:
        return WaitReason.QUEUE
    return WaitReason.STARTING if facts.waited_seconds <= STARTING_SECONDS_MAX else WaitReason.UNCLEAR


#: English and Japanese. Numbers follow a colon, so that no plural form is needed.
_TEXTS: dict[WaitReason, tuple[str, str]] = {
    WaitReason.NO_WORKER: (
        "No worker serves tag {tag}. Start one with: {command}",
        "タグ {tag} を担当するworkerがいません。次のコマンドで起動してください: {command}",
    ),
    WaitReason.WORKERS_DISCONNECTED: (
        "No worker that serves tag {tag} is there now. Stopped or silent: {gone}.",
        "タグ {tag} を担当するworkerは現在いません。停止または応答なし: {gone}",
    ),
    WaitReason.BUSY: (
        "The run is next for tag {tag}, and every slot is busy. Busy slots: {busy} of {slots}.",
        "タグ {tag} の次の順番ですが、空きスロットがありません。使用中のスロット: {busy}/{slots}",
    ),
    WaitReason.QUEUE: (
        "Other runs with tag {tag} come first. Ahead: {ahead}. Busy slots: {busy} of {slots}.",
        "タグ {tag} の他のrunが先に待っています。先行: {ahead_ja}、使用中のスロット: {busy}/{slots}",
    ),
    WaitReason.STARTING: (
        "A worker for tag {tag} has a free slot. The run should begin at any moment.",
        "タグ {tag} のworkerに空きスロットがあります。まもなく開始される見込みです",
    ),
    WaitReason.UNCLEAR: (
        "Workers for tag {tag} have free slots, and still none has taken the run in {waited} s. Look at their logs.",
        "タグ {tag} のworkerに空きはありますが、{waited}秒たっても開始されていません。workerのログを確認してください",
    ),
}


#: The texts for packs, for the reasons a pack can have.
_PACK_TEXTS: dict[WaitReason, tuple[str, str]] = {
    WaitReason.NO_WORKER: (
        "There is no worker. Every worker takes priced runs, unless PYOCO_PACKS leaves their pack out.",
        "workerがいません。PYOCO_PACKSで対象外にしていない限り、どのworkerも課金runを実行します",
    ),
    WaitReason.WORKERS_DISCONNECTED: (
        "No worker is there now that could take the priced run. Stopped or silent: {gone}.",
        "課金runを実行できるworkerは現在いません。停止または応答なし: {gone}",
    ),
    WaitReason.QUEUE: (
        "Other priced runs come first. Ahead: {ahead}. Workers alive: {alive}.",
        "他の課金runが先に待っています。先行: {ahead_ja}、稼働中のworker: {alive}",
    ),
    WaitReason.STARTING: (
        "No priced run is ahead of it: a worker should start it at any moment.",
        "先に待っている課金runはありません。まもなく開始される見込みです",
    ),
    WaitReason.UNCLEAR: (
        "No priced run is ahead of it, and still no worker has started it in {waited} s. Look at the workers' logs, "
        "at PYOCO_PACKS, which says which packs a worker takes, and at: pyoco-server-admin packs letters",
        "先に待っている課金runはありませんが、{waited}秒たっても開始されていません。"
        "workerのログ、workerが実行するパックを決めるPYOCO_PACKS、および次を確認してください: "
        "pyoco-server-admin packs letters",
    ),
}

#: There are live workers, but none of them executes this pack.
_NOT_SERVED = (
    "No worker that is there now executes the pack {pack}. Workers alive: {alive}. Start one where the pack is "
    "installed and PYOCO_PACKS does not leave it out; the log of a worker says what it takes, and why not others.",
    "パック {pack} を実行するworkerが現在いません。稼働中のworker: {alive}。"
    "パックがインストールされ、PYOCO_PACKSで対象外にされていないworkerを起動してください。"
    "実行するパックと、除外されたパックの理由はworkerのログに記録されています",
)

#: The same, if workers report the reason (SAFE-3).
_LACKING = (
    "None of the live workers can execute the pack {pack}. Workers alive: {alive}. Missing: {missing}. The run "
    "starts once it is available, and is refunded if it waits too long.",
    "パック {pack} を実行できるworkerが現在いません。稼働中のworker: {alive}。不足しているもの: {missing}。"
    "用意できれば開始され、長く待った場合は返金されます",
)

_DISPUTED = (
    "The records about its money contradict each other: an operator has to decide how it ends. It is listed by "
    "`pyoco-server-admin budget disputes`, and ended by `pyoco-server-admin budget resolve`.",
    "金額の記録が矛盾しているため、運用者が判断するまで処理は進みません。"
    "`pyoco-server-admin budget disputes` で一覧し、`pyoco-server-admin budget resolve` で終了させます",
)


def start_command(tag: str) -> str:
    """Return the command that starts a worker for the tag.

    It contains a placeholder for the resolver and does not run unchanged: a worker without flows would take the waiting
    runs and fail every one of them.
    """
    return f"pyoco-worker --flow-resolver MODULE:CALLABLE --tags {shlex.quote(tag)}"


def tell(reason: WaitReason, facts: Queueing) -> tuple[str, str]:
    """Return the reason as a sentence: English, Japanese."""
    words = {
        "tag": facts.tag,
        "command": start_command(facts.tag),
        "gone": facts.workers_gone,
        "busy": facts.slots_busy,
        "slots": facts.slots,
        "ahead": f"{facts.ahead} or more" if facts.ahead_capped else str(facts.ahead),
        "ahead_ja": f"{facts.ahead}件以上" if facts.ahead_capped else f"{facts.ahead}件",
        "waited": int(facts.waited_seconds),
    }
    english, japanese = _TEXTS[reason]
    return english.format(**words), japanese.format(**words)


_FOR_TIME: dict[str, tuple[str, str]] = {
    WaitsFor.SCHEDULED: (
        "The run starts at {until}, as it was submitted. To start it at once: pyoco-client run start {run_id}",
        "runは指定された時刻 {until} に開始されます。すぐに開始する場合: pyoco-client run start {run_id}",
    ),
    WaitsFor.RETRY: (
        "A try failed. The next one starts at {until}. To start it at once: pyoco-client run start {run_id}",
        "前回の試行が失敗したため、{until} に再試行します。すぐに開始する場合: pyoco-client run start {run_id}",
    ),
}


def tell_time(run: Run) -> tuple[WaitReason, str, str]:
    """Return why a run without a job waits for its time: the reason, and a sentence in English and in Japanese."""
    until = instant_text(run.due_at or 0.0)
    kind = WaitsFor.RETRY if run.waits_for == WaitsFor.RETRY else WaitsFor.SCHEDULED
    english, japanese = _FOR_TIME[kind]
    words = {"until": until, "run_id": run.run_id}
    return WaitReason(kind.value), english.format(**words), japanese.format(**words)


def tell_disputed() -> tuple[str, str]:
    """Return the sentence for a disputed pack, which applies regardless of all other facts."""
    return _DISPUTED


def tell_pack(reason: WaitReason, facts: PackQueueing) -> tuple[str, str]:
    """Return the same for a pack."""
    words = {
        "pack": facts.pack_type,
        "gone": facts.workers_gone,
        "alive": facts.workers_alive,
        "ahead": f"{facts.ahead} or more" if facts.ahead_capped else str(facts.ahead),
        "ahead_ja": f"{facts.ahead}件以上" if facts.ahead_capped else f"{facts.ahead}件",
        "waited": int(facts.waited_seconds),
    }
    is_unserved = reason is WaitReason.NO_WORKER and facts.workers_alive > 0
    words["missing"] = "; ".join(facts.missing)
    english, japanese = _PACK_TEXTS[reason]
    if is_unserved:
        english, japanese = _LACKING if facts.missing else _NOT_SERVED
    return english.format(**words), japanese.format(**words)
