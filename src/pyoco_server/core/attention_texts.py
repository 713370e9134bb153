"""What a finding of `attention` is about, and its sentence in English and Japanese."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["TEXTS", "FindingKind"]


class FindingKind(StrEnum):
    """The kind of a finding, in order of urgency: an earlier one may be the cause of a later one."""

    #: This gateway has no connection to NATS.
    NATS_DOWN = "nats_down"
    #: NATS refused to store something for lack of space.
    STORE_FULL = "store_full"
    #: A stream, bucket or object store was deleted in NATS, and its data with it.
    RESOURCE_LOST = "resource_lost"
    #: Lists of this gateway are incomplete at the moment, or cannot be read.
    INDEX_BEHIND = "index_behind"
    #: A store of priced runs does not answer.
    PRICED_STORES_SILENT = "priced_stores_silent"
    #: The last audit found that balances do not add up.
    MONEY_DIFFERS = "money_differs"
    #: Priced runs wait for an operator's decision: the facts about their money contradict each other.
    DISPUTED_RUNS = "disputed_runs"
    #: Run records cannot be read.
    RECORD_UNREADABLE = "record_unreadable"
    #: Runs wait for a tag that no live worker serves.
    TAG_WITHOUT_WORKER = "tag_without_worker"
    #: Priced runs wait, and no worker is alive.
    PACKS_WITHOUT_WORKER = "packs_without_worker"
    #: A worker stopped sending heartbeats and still owns runs.
    WORKERS_LOST = "workers_lost"
    #: Many runs of a flow failed recently.
    FAILING_FLOW = "failing_flow"
    #: Runs of a tag are submitted faster than they are completed.
    GROWING_QUEUE = "growing_queue"
    #: There are dead letters.
    DEAD_LETTERS = "dead_letters"
    #: There are dead letters of priced runs.
    PACK_DEAD_LETTERS = "pack_letters"
    #: Runs are RUNNING according to their records, without a heartbeat for a while.
    STALE_RUNS = "stale_runs"
    #: Ticks of schedules are due and not handled (SCHED-20).
    SCHEDULE_OVERDUE = "schedule_overdue"
    #: Workers could not install a wheel.
    WHEEL_FAILURES = "wheel_failures"


#: English and Japanese. Numbers follow a colon, so that no plural form is needed.
TEXTS: dict[FindingKind, tuple[str, str]] = {
    FindingKind.NATS_DOWN: (
        "This gateway has no connection to NATS: submissions are refused, and runs are not updated.",
        "このgatewayはNATSに接続できていません。runの投入はできず、状態の変化も表示されません",
    ),
    FindingKind.STORE_FULL: (
        "NATS is out of storage: submissions are refused. {advice}",
        "NATSの保存領域に空きがなく、runの投入は拒否されます。{advice_ja}",
    ),
    FindingKind.RESOURCE_LOST: (
        "{resource} is missing in NATS. Lost: {lost}. Restore a backup with: pyoco-server-admin restore --from DIR "
        "--only {resource}; or create it empty with: pyoco-server-admin prepare",
        "NATSの {resource} がありません。失われたもの: {lost_ja}。バックアップから復元してください: "
        "pyoco-server-admin restore --from DIR --only {resource}。空で作り直す場合: pyoco-server-admin prepare",
    ),
    FindingKind.INDEX_BEHIND: (
        "Lists of this gateway are incomplete or unavailable: its index is being built, is too slow, or receives no "
        "changes.",
        "このgatewayの一覧は現在正確ではないか、読み取れません。索引を作成中か、応答が遅いか、変更を受信できていません",
    ),
    FindingKind.PRICED_STORES_SILENT: (
        "Priced runs are impaired: no response from {names}. For details run: pyoco-server doctor",
        "課金runの保存先が応答していません: {names_ja}。詳細は次のコマンドで確認してください: pyoco-server doctor",
    ),
    FindingKind.MONEY_DIFFERS: (
        "Balances do not add up. Differences in the last audit: {differences}. Show them with: "
        "pyoco-server-admin budget verify",
        "金額が一致していません。直近の監査で見つかった差異: {differences}件。次のコマンドで確認してください: "
        "pyoco-server-admin budget verify",
    ),
    FindingKind.DISPUTED_RUNS: (
        "Disputed priced runs wait for your decision: {disputed}. The oldest has waited {since}. List them with: "
        "pyoco-server-admin budget disputes",
        "金額の記録が矛盾し、判断を待っている課金runがあります: {disputed_ja}。最も古いもの: {since_ja}。"
        "次のコマンドで一覧できます: pyoco-server-admin budget disputes",
    ),
    FindingKind.RECORD_UNREADABLE: (
        "Run records cannot be read: {unreadable}. The first: {run_id}. Restore a backup, or remove it with: "
        "pyoco-server-admin run discard {run_id}",
        "読み取れないrunの記録があります: {unreadable_ja}。最初のもの: {run_id}。バックアップから復元するか、"
        "次のコマンドで削除してください: pyoco-server-admin run discard {run_id}",
    ),
    FindingKind.TAG_WITHOUT_WORKER: (
        "No worker serves tag {tag}. Waiting: {depth}. Start one with: {command}",
        "タグ {tag} を担当するworkerがいません。待機中: {depth}件。次のコマンドで起動してください: {command}",
    ),
    FindingKind.PACKS_WITHOUT_WORKER: (
        "Priced runs are waiting, and no worker is alive. Waiting: {depth}.",
        "課金runが待っていますが、実行するworkerがいません。待機中: {depth}件",
    ),
    FindingKind.WORKERS_LOST: (
        "Worker {worker_id} stopped responding while it executed runs. Affected runs: {runs}. Another worker takes "
        "them over when their claim expires.",
        "worker {worker_id} がrunを実行したまま応答していません。実行中だったrun: {runs}件。"
        "占有期限が切れると別のworkerが引き継ぎます",
    ),
    FindingKind.FAILING_FLOW: (
        "Flow {flow} is failing: {failed} of {ended} runs in the last {minutes} minutes.",
        "フロー {flow} が失敗しています。直近{minutes}分間の失敗: {failed}/{ended}件",
    ),
    FindingKind.GROWING_QUEUE: (
        "The queue of tag {tag} is growing. Waiting: {depth}; {minutes} minutes ago: {depth_before}. Add workers or "
        "slots.",
        "タグ {tag} のキューが伸びています。待機中: {depth}件、{minutes}分前: {depth_before}件。"
        "workerまたはスロットの追加を検討してください",
    ),
    FindingKind.DEAD_LETTERS: (
        "{letters} ({new} new in the last hour). Redrive or delete them.",
        "失敗したrunの対応が必要です: {letters_ja}（直近1時間の新着: {new_ja}）。再投入するか削除してください",
    ),
    FindingKind.PACK_DEAD_LETTERS: (
        "Dead letters of priced runs: {letters}. List them with: pyoco-server-admin packs letters",
        "課金runのデッドレターがあります: {letters}件。"
        "次のコマンドで確認してください: pyoco-server-admin packs letters",
    ),
    FindingKind.STALE_RUNS: (
        "RUNNING runs without a recent heartbeat: {stale}.",
        "RUNNINGのまま更新が途絶えているrunがあります: {stale_ja}",
    ),
    FindingKind.SCHEDULE_OVERDUE: (
        "Schedules whose tick is due and not handled: {schedules}. The first: {schedule}, due for {since}. Check that "
        "a keeper runs.",
        "予定時刻を過ぎても処理されていないスケジュールがあります: {schedules}件。"
        "最初のもの: {schedule}（{since_ja}）。keeperが動作しているか確認してください",
    ),
    FindingKind.WHEEL_FAILURES: (
        "Workers that failed to install a wheel: {workers}. Their records show which wheel, and why.",
        "wheelをインストールできなかったworkerがいます: {workers}台。wheel名と理由はworkerの情報を確認してください",
    ),
}
