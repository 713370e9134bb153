"""Explain why a job has not begun, from the state of its lane, its client and its workers."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.waiting import STARTING_SECONDS_MAX, WaitReason

__all__ = ["ProgramQueueing", "tell_program", "why_program"]


@dataclass(frozen=True, kw_only=True)
class ProgramQueueing:
    """State of a waiting job's lane, client and workers."""

    exec_name: str
    client_id: str
    #: Since it was submitted, or put back.
    waited_seconds: float
    #: Until it may be retried; 0: now.
    retry_seconds: float
    #: Jobs of its lane that come before it.
    ahead: int
    #: There may be more than `ahead`: the count stopped at its limit.
    ahead_capped: bool
    #: Cap of its client, and jobs in flight.
    cap: int
    inflight: int
    #: Workers that take the program: alive, and known but stopped or without heartbeats.
    workers_alive: int
    workers_gone: int
    #: Of the live workers together: slots, slots that accept nothing now, and running programs.
    places: int
    places_busy: int
    running: int


def why_program(facts: ProgramQueueing) -> WaitReason:
    """Return the first condition that must change for the job to begin."""
    if facts.retry_seconds > 0:
        return WaitReason.RETRY
    if facts.workers_alive == 0:
        return WaitReason.WORKERS_DISCONNECTED if facts.workers_gone else WaitReason.NO_WORKER
    if facts.inflight >= facts.cap:
        return WaitReason.AT_CAP
    if facts.places_busy >= facts.places:
        return WaitReason.BUSY
    if facts.ahead:
        return WaitReason.QUEUE
    return WaitReason.STARTING if facts.waited_seconds <= STARTING_SECONDS_MAX else WaitReason.UNCLEAR


#: English and Japanese. Numbers follow a colon, so no plural forms are needed.
_TEXTS: dict[WaitReason, tuple[str, str]] = {
    WaitReason.RETRY: (
        "An attempt failed or was lost, and the job is tried again. Seconds until then: {retry}.",
        "前回の試行が失敗または中断したため、再試行を待っています。残り秒数: {retry}",
    ),
    WaitReason.NO_WORKER: (
        "No worker takes the program {exec}. Start one with: {command}",
        "プログラム {exec} を実行するworkerがいません。次のコマンドで起動してください: {command}",
    ),
    WaitReason.WORKERS_DISCONNECTED: (
        "No worker that takes the program {exec} is there now. Stopped or silent: {gone}.",
        "プログラム {exec} を実行するworkerは現在いません。停止または応答なし: {gone}",
    ),
    WaitReason.AT_CAP: (
        "Client {client} has as many jobs in flight as it may. In flight: {inflight} of {cap}. Ahead: {ahead}.",
        "クライアント {client} の同時実行数が上限に達しています。実行中: {inflight}/{cap}、先行: {ahead_ja}",
    ),
    WaitReason.BUSY: (
        "Every worker of the program {exec} is busy. Running: {running} of {places}. Ahead: {ahead}. A machine whose "
        "CPUs are busy takes no more for a while (WORKER_CPU_CAP).",
        "プログラム {exec} を実行するworkerに空きがありません。実行中: {running}/{places}、先行: {ahead_ja}。"
        "CPUの負荷が高いマシンはしばらく新しいジョブを受け取りません (WORKER_CPU_CAP)",
    ),
    WaitReason.QUEUE: (
        "Other jobs of client {client} for the program {exec} come first. Ahead: {ahead}.",
        "クライアント {client} の他のジョブが先に待っています。先行: {ahead_ja}",
    ),
    WaitReason.STARTING: (
        "A worker for the program {exec} is free. The job should begin at any moment.",
        "プログラム {exec} を実行するworkerに空きがあります。まもなく開始される見込みです",
    ),
    WaitReason.UNCLEAR: (
        "Workers for the program {exec} are free, and still none has begun the job in {waited} s. Look at the logs of "
        "workers and doors.",
        "プログラム {exec} のworkerに空きはありますが、{waited}秒たっても開始されていません。"
        "workerとdoorのログを確認してください",
    ),
}


def tell_program(reason: WaitReason, facts: ProgramQueueing) -> tuple[str, str]:
    """Return the reason as a sentence, in English and Japanese."""
    values = {
        "exec": facts.exec_name,
        "client": facts.client_id,
        "command": f"pyoco-grid nworker job.assign.{facts.exec_name}",
        "retry": max(1, round(facts.retry_seconds)),
        "gone": facts.workers_gone,
        "inflight": facts.inflight,
        "cap": facts.cap,
        "running": facts.running,
        "places": facts.places,
        "ahead": f"{facts.ahead} or more" if facts.ahead_capped else str(facts.ahead),
        "ahead_ja": f"{facts.ahead}件以上" if facts.ahead_capped else f"{facts.ahead}件",
        "waited": int(facts.waited_seconds),
    }
    english, japanese = _TEXTS[reason]
    return english.format(**values), japanese.format(**values)
