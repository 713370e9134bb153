"""The contents of each stream, bucket and object store in NATS, and what is lost when it is deleted."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["LOST", "REBUILT", "Holds"]


class Holds(StrEnum):
    """The contents of one resource."""

    JOBS = "jobs"
    ADVISORIES = "advisories"
    ALARMS = "alarms"
    DEAD_LETTERS = "letters"
    RUNS = "runs"
    WORKERS = "workers"
    KEYS = "keys"
    RECEIPTS = "receipts"
    WHEELS = "wheels"
    WHEEL_HISTORY = "wheel_history"
    WORKFLOWS = "workflows"
    OUTPUTS = "outputs"
    PACK_JOBS = "pack_jobs"
    PACK_DEAD_LETTERS = "pack_letters"
    RESULTS = "results"
    INPUTS = "inputs"
    SECRETS = "secrets"
    PROGRAM_JOBS = "program_jobs"
    LANES = "lanes"
    CAPS = "caps"
    SLOTS = "slots"
    DOORS = "doors"
    ACL = "acl"
    ROUTES = "routes"
    ARTIFACTS = "artifacts"
    PROGRAM_EVENTS = "program_events"
    RUN_LOGS = "run_logs"
    SCHEDULES = "schedules"
    OTHER = "other"


#: SAFE-15: recreating these empty loses no data. Queues and alarms are restored from the run records, and every live
#: worker and door writes its own record again.
REBUILT = frozenset(
    {
        Holds.JOBS,
        Holds.ADVISORIES,
        Holds.ALARMS,
        Holds.PACK_JOBS,
        Holds.PROGRAM_JOBS,
        Holds.WORKERS,
        Holds.DOORS,
    }
)

#: What is lost, in English and Japanese; completes the phrase "lost: …".
LOST: dict[Holds, tuple[str, str]] = {
    Holds.JOBS: ("the queue of flow runs; PENDING runs can be queued again", "flow runのキュー（PENDINGは再登録可能）"),
    Holds.ADVISORIES: ("notices of jobs that were delivered too often", "配信回数の上限に達したジョブの通知"),
    Holds.ALARMS: (
        "alarms of delayed runs and schedules; they are set again",
        "遅延runとスケジュールのアラーム（再設定される）",
    ),
    Holds.DEAD_LETTERS: ("dead letters", "dead letter"),
    Holds.RUNS: ("all run records: state, params and task records", "すべてのrunの記録（状態・パラメーター・タスク）"),
    Holds.WORKERS: ("the worker registry; live workers register again", "workerの登録情報（稼働中のworkerは再登録）"),
    Holds.KEYS: ("all API keys", "すべてのAPI key"),
    Holds.RECEIPTS: (
        "idempotency keys: a repeated submission would start a second run",
        "冪等キー（同じキーの再送信で二重に実行される可能性）",
    ),
    Holds.WHEELS: ("registered wheels", "登録済みのwheel"),
    Holds.WHEEL_HISTORY: ("the wheel history", "wheelの履歴"),
    Holds.WORKFLOWS: ("uploaded flow.yaml files, which re-runs need", "再実行に必要なflow.yaml"),
    Holds.OUTPUTS: ("large results and outputs of runs", "runの大きな結果と出力"),
    Holds.PACK_JOBS: ("the queue of priced runs; QUEUED runs are sent again", "課金runのキュー（QUEUEDは再送信）"),
    Holds.PACK_DEAD_LETTERS: ("dead letters of priced runs", "課金runのdead letter"),
    Holds.RESULTS: ("results of priced runs", "課金runの結果"),
    Holds.INPUTS: ("uploaded input files of priced runs", "課金runの入力ファイル"),
    Holds.SECRETS: ("the secret that result links are signed with", "結果リンクの署名鍵"),
    Holds.PROGRAM_JOBS: (
        "the queue of programs; open jobs are queued again",
        "プログラムのキュー（未完了分は再登録）",
    ),
    Holds.LANES: ("the list of program queues", "プログラムのキューの一覧"),
    Holds.CAPS: ("concurrency caps of clients", "クライアントの同時実行数の上限設定"),
    Holds.SLOTS: ("which programs hold a client's slots", "クライアントのスロットの使用状況"),
    Holds.DOORS: ("the list of frame doors; live doors register again", "frame doorの一覧（稼働中のものは再登録）"),
    Holds.ACL: ("the access list of programs", "プログラムのアクセス制御リスト"),
    Holds.ROUTES: ("which group each routed job was sent to", "ルーティング済みジョブの送信先"),
    Holds.ARTIFACTS: ("inputs and outputs of programs", "プログラムの入出力ファイル"),
    Holds.PROGRAM_EVENTS: ("the event history of programs", "プログラムのイベント履歴"),
    Holds.SCHEDULES: ("schedules and the history of their ticks", "スケジュールとその実行履歴"),
    Holds.RUN_LOGS: ("what runs have printed", "runのログ"),
    Holds.OTHER: ("its content", "保存されていた内容"),
}
