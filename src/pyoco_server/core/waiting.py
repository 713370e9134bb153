"""Why a run has not begun: from what is known of its queue and its workers to a sentence."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum

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
    "waits",
    "why",
    "why_pack",
]

#: A run that could begin and has not done so for this long does not "begin at any moment". Longer than a job that was
#: put off takes to come again.
STARTING_SECONDS_MAX = 30.0


class WaitReason(StrEnum):
    """Why a run that nobody executes has to wait."""

    #: No worker with its tag is known. Of a pack: none at all, or none that executes it.
    NO_WORKER = "no_worker"
    #: Workers with its tag are known; each of them has stopped or gone silent.
    WORKERS_DISCONNECTED = "workers_disconnected"
    #: Nothing is ahead of it, but every slot of the workers is busy.
    BUSY = "busy"
    #: Others with its tag were submitted earlier, more than there are free slots.
    QUEUE = "queue"
    #: There is a free slot for it: it should begin at any moment.
    STARTING = "starting"
    #: There has been room for it for a while, and still it has not begun.
    UNCLEAR = "unclear"
    #: Of a pack: what is known of its money contradicts itself, and an operator has to decide.
    DISPUTED = "disputed"
    #: Of a program: its client has as many jobs in flight as it may.
    AT_CAP = "at_cap"
    #: Of a program: an attempt failed or was lost, and the next one waits for its time.
    RETRY = "retry"


@dataclass(frozen=True, kw_only=True)
class Queueing:
    """What is known of a waiting run's surroundings."""

    tag: str
    #: Since it was submitted or handed back.
    waited_seconds: float
    #: Waiting runs of its tag that come before it.
    ahead: int
    #: There are more than that: counting was stopped there.
    ahead_capped: bool
    #: Workers with its tag: alive, and known but stopped or silent.
    workers_alive: int
    workers_gone: int
    #: Of those alive, together.
    slots: int
    slots_busy: int


@dataclass(frozen=True, kw_only=True)
class PackQueueing:
    """What is known of a waiting pack's surroundings. Any worker that has the pack may take it, and in a lane of its
    own: so neither tags nor the slots of flows tell when."""

    pack_type: str
    waited_seconds: float
    #: Packs that come before it.
    ahead: int
    ahead_capped: bool
    #: All workers there are: alive, and known but stopped or silent.
    workers_alive: int
    workers_gone: int
    #: Of those alive: who executes this pack, or does not tell.
    workers_serving: int
    #: What those alive lack for it, by their own word.
    missing: tuple[str, ...] = ()


def waits(run: Run) -> bool:
    """Whether nobody executes the run: it is the queue's business, or an operator's.

    That is every PENDING run, and a run that a stopping worker handed back and nobody has taken yet. A cancelled run
    waits for nothing: the keeper ends it. Nor does a pack that was started, unless it is disputed: nobody gives it
    back, and its record does not name its worker.
    """
    if run.is_pack:
        return run.status is RunState.PENDING or is_disputed(run)
    if run.is_exec:  # one that was put back still names its last worker
        return run.status is RunState.PENDING
    return run.worker_id is None and run.status in (RunState.PENDING, RunState.RUNNING)


def is_disputed(run: Run) -> bool:
    """Whether the pack stands still until an operator ends it, whatever its status says."""
    return run.is_pack and not run.is_terminal and run.extra.get("money_state") == Money.DISPUTED


def why(facts: Queueing) -> WaitReason:
    """The one thing that has to change first for the run to begin."""
    if facts.workers_alive == 0:
        return WaitReason.WORKERS_DISCONNECTED if facts.workers_gone else WaitReason.NO_WORKER
    if facts.ahead < facts.slots - facts.slots_busy:
        return WaitReason.STARTING if facts.waited_seconds <= STARTING_SECONDS_MAX else WaitReason.UNCLEAR
    return WaitReason.QUEUE if facts.ahead else WaitReason.BUSY


def why_pack(facts: PackQueueing) -> WaitReason:
    """The same of a pack."""
    if facts.workers_alive == 0:
        return WaitReason.WORKERS_DISCONNECTED if facts.workers_gone else WaitReason.NO_WORKER
    if facts.workers_serving == 0:
        return WaitReason.NO_WORKER
    if facts.ahead:
        return WaitReason.QUEUE
    return WaitReason.STARTING if facts.waited_seconds <= STARTING_SECONDS_MAX else WaitReason.UNCLEAR


#: English and Japanese. Figures stand behind a colon: no plural has to be formed.
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


#: The same of a pack, for the reasons it may have.
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

#: There are workers, and none of them is for this pack.
_NOT_SERVED = (
    "No worker that is there now executes the pack {pack}. Workers alive: {alive}. Start one where the pack is "
    "installed and PYOCO_PACKS does not leave it out; the log of a worker says what it takes, and why not others.",
    "パック {pack} を実行するworkerが現在いません。稼働中のworker: {alive}。"
    "パックがインストールされ、PYOCO_PACKSで対象外にされていないworkerを起動してください。"
    "実行するパックと、除外されたパックの理由はworkerのログに記録されています",
)

#: The same, where workers say why (SAFE-3).
_LACKING = (
    "No worker that is there now can execute the pack {pack}. Workers alive: {alive}. Missing: {missing}. The run "
    "starts once that is there, and is refunded if it waits too long.",
    "パック {pack} を実行できるworkerが現在いません。稼働中のworker: {alive}。不足しているもの: {missing}。"
    "用意できれば開始され、長く待った場合は返金されます",
)

_DISPUTED = (
    "What is known of its money contradicts itself: nobody goes on with it until an operator decides. It is listed by "
    "`pyoco-server-admin budget disputes`, and ended by `pyoco-server-admin budget resolve`.",
    "金額の記録が矛盾しているため、運用者が判断するまで処理は進みません。"
    "`pyoco-server-admin budget disputes` で一覧し、`pyoco-server-admin budget resolve` で終了させます",
)


def start_command(tag: str) -> str:
    """What starts a worker for the tag. It names a resolver, and does not run as it is: a worker that knows no flows
    would take the runs that wait and fail every one of them."""
    return f"pyoco-worker --flow-resolver MODULE:CALLABLE --tags {shlex.quote(tag)}"


def tell(reason: WaitReason, facts: Queueing) -> tuple[str, str]:
    """The reason in a sentence: English, Japanese."""
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


def tell_disputed() -> tuple[str, str]:
    """The same of a disputed pack: whatever else there is does not matter."""
    return _DISPUTED


def tell_pack(reason: WaitReason, facts: PackQueueing) -> tuple[str, str]:
    """The same of a pack."""
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
