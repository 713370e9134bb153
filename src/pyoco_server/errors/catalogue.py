"""The ids and texts shown to users, one entry per error. The classes in `errors/__init__.py` refer to them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CATALOGUE", "Text"]


@dataclass(frozen=True)
class Text:
    """One line of the catalogue: error n always belongs to message n (FLOW-565)."""

    number: int
    #: Product text for users, in both languages.
    en: str
    ja: str
    #: What the reader can do about it.
    action: str

    @property
    def err_id(self) -> str:
        return f"ERR-PYOCO-{self.number:04d}"

    @property
    def msg_id(self) -> str:
        return f"MSG-PYOCO-{self.number:04d}"


#: FLOW-565, section 27 of the contract. Numbers are never reused.
CATALOGUE: dict[int, Text] = {
    text.number: text
    for text in (
        Text(1, "The health check failed.", "稼働確認に失敗しました", "Start the gateway or check the connection."),
        Text(2, "The request is invalid.", "リクエストが不正です", "Correct the input."),
        Text(3, "NATS is not available.", "NATSが利用できません", "Restore NATS and try again."),
        Text(
            4,
            "An orphan run may remain (best-effort cleanup failed).",
            "孤児runが残っている可能性があります（best-effort cleanup失敗）",
            "Check the run id and remove it if needed.",
        ),
        Text(5, "The run was not found.", "runが見つかりません", "Check the run id."),
        Text(6, "The flow was not found.", "flowが見つかりません", "Check the flow name and what the worker has."),
        Text(7, "The execution failed.", "実行に失敗しました", "Check input, code and dependencies; submit again."),
        Text(8, "The terminal state could not be recorded.", "terminal状態の記録に失敗しました", "Restore NATS."),
        Text(9, "The in_progress ACK could not be sent.", "in_progress ACK の送信に失敗しました", "Restore NATS."),
        Text(10, "The snapshot is too large.", "スナップショットが大きすぎます", "Raise PYOCO_MAX_RUN_SNAPSHOT_BYTES."),
        Text(
            11,
            "Publishing to the DLQ failed (best effort).",
            "DLQへのpublishに失敗しました（best-effort）",
            "Look at the run snapshot first.",
        ),
        Text(12, "An invalid job was received.", "不正なジョブを受信しました", "Check the producer and the subject."),
        Text(
            13, "Log output failed (best effort).", "ログ出力に失敗しました（best-effort）", "Check the log settings."
        ),
        Text(14, "An API key is required.", "API key が必要です", "Send an API key."),
        Text(15, "The API key is invalid.", "API key が無効です", "Check the key or have a new one made."),
        Text(
            16,
            "The workflow file is too large.",
            "ワークフローファイルが大きすぎます",
            "Shrink the file or raise PYOCO_WORKFLOW_YAML_MAX_BYTES.",
        ),
        Text(17, "The list query is invalid.", "一覧クエリが不正です", "Correct the query."),
        Text(
            18, "The command-line arguments are invalid.", "コマンドライン引数が不正です", "Follow the example shown."
        ),
        Text(19, "The workers request is invalid.", "workersリクエストが不正です", "Correct the request."),
        Text(20, "The worker was not found.", "workerが見つかりません", "Check the worker id."),
        Text(
            21,
            "The cancellation did not finish within the grace period (best effort).",
            "取消が猶予時間内に完了しませんでした（best-effort）",
            "Look at what the task waits for.",
        ),
        Text(
            22,
            "A wheel of the same or an older version is rejected.",
            "同一または過去バージョンのwheelは登録できません",
            "Raise the version.",
        ),
        Text(23, "The wheel was not found.", "wheelが見つかりません", "Check the wheel name."),
        Text(
            24,
            "The wheel synchronisation failed (best effort).",
            "wheelの同期に失敗しました（best-effort）",
            "Check the log and the registry.",
        ),
        Text(25, "An internal error occurred.", "内部エラーが発生しました", "Look at the gateway's log."),
        Text(
            26,
            "The idempotency key was used for another submission.",
            "idempotency key は別の内容で使用済みです",
            "Use a new key for a new submission.",
        ),
        Text(
            27, "The dead letter was not found.", "dead letter が見つかりません", "Check its id; it may have expired."
        ),
        Text(
            28,
            "The run cannot be repeated.",
            "runを再実行できません",
            "Submit it anew: what it was submitted with is no longer kept.",
        ),
        Text(
            29,
            "Too many requests with a bad API key.",
            "無効な API key によるリクエストが多すぎます",
            "Check the key, and wait as long as Retry-After says.",
        ),
        Text(
            30,
            "This gateway serves as many event streams as it may.",
            "このゲートウェイのイベントストリーム数が上限に達しています",
            "Try again later, or ask another gateway.",
        ),
        Text(
            31,
            "The flow.yaml names code that this worker does not offer.",
            "flow.yaml が、このworkerで許可されていないコードを指定しています",
            "Make a task of it, or allow its module with PYOCO_CALLABLE_ALLOW on the worker.",
        ),
        Text(
            32,
            "There is no room left on the disk.",
            "ディスクの空き容量がありません",
            "Make room on the disk and try again.",
        ),
        Text(
            33,
            "The backup could not be made or restored.",
            "バックアップの作成または復元に失敗しました",
            "Follow what the message says.",
        ),
        Text(
            34,
            "This gateway moves as many files as it may.",
            "このゲートウェイの同時転送数が上限に達しています",
            "Try again later, or ask another gateway.",
        ),
        Text(
            35,
            "The dashboard is read-only.",
            "ダッシュボードは読み取り専用です",
            "Use pyoco-client, or start the gateway without PYOCO_DASHBOARD_READ_ONLY.",
        ),
        Text(
            36,
            "A store of priced runs is not available.",
            "有料runのストアが利用できません",
            "Restore the ledger, budget, queue or result store; `GET /readyz` says which. Try again with the same key.",
        ),
        Text(
            37,
            "The same idempotency key is being submitted right now.",
            "同じ冪等キーの送信が処理中です",
            "Try again in a second with the same key.",
        ),
        Text(
            38,
            "The budget does not cover this run.",
            "予算が不足しています",
            "Credit the tenant: pyoco-server-admin budget credit.",
        ),
        Text(
            39,
            "The run is past its retention.",
            "runの保持期間が過ぎています",
            "Submit it again under a new key.",
        ),
        Text(
            40,
            "The tenant asks too often.",
            "tenantのリクエストが多すぎます",
            "Wait for as long as `Retry-After` says.",
        ),
        Text(
            41,
            "The run could not be queued; nothing was charged.",
            "runをキューに登録できませんでした。課金はされていません",
            "Try again with the same key.",
        ),
        Text(
            42,
            "This cannot be done with a run of this kind.",
            "この種類のrunにはできない操作です",
            "Priced runs end by themselves, or at their timebox; they are submitted at /v1/runs.",
        ),
        Text(
            43,
            "The ledger has to be migrated first.",
            "先にledgerの移行が必要です",
            "pyoco-server-admin ledger migrate",
        ),
        Text(
            44,
            "The job was refused.",
            "ジョブを受け付けられません",
            "The code and the text say what is wrong; correct it, or try again when the code allows it.",
        ),
        Text(
            45,
            "NATS is not set up for programs.",
            "NATSの構成がプログラム実行の要件を満たしていません",
            "The text says which stream or how many nodes; correct that, then start again.",
        ),
        Text(
            46,
            "The files of the program are no longer kept.",
            "プログラムのファイルは保存期間を過ぎています",
            "Submit the job again; EXEC_ARTIFACT_TTL_SEC says for how long files are kept.",
        ),
        Text(
            47,
            "The port would be open to everybody.",
            "ポートが誰でも接続できる状態になります",
            "Set EXEC_AUTH=api_key, ask for client certificates, or give --insecure; beside HTTP with keys, give "
            "--open-frames.",
        ),
        Text(
            48,
            "The reservation is below the price.",
            "予約額が料金を下回っています",
            "Reserve at least `price_usd` of the answer.",
        ),
        Text(
            49,
            "This is not the ledger that this deployment uses.",
            "このデプロイで使用しているledgerではありません",
            "Correct PYOCO_LEDGER_URL or the data directory, or put the ledger back. To change to this ledger on "
            "purpose: pyoco-server-admin ledger adopt.",
        ),
        Text(
            50,
            "A resource in NATS is missing.",
            "NATSのリソースが見つかりません",
            "`resource` names it. The keeper creates queues again within 30 s; for other resources run "
            "`pyoco-server doctor`, then restore a backup or run `pyoco-server-admin prepare`.",
        ),
        Text(
            51,
            "Several local servers are running.",
            "複数のローカルサーバーが動作しています",
            "Choose one with the option that the text names, or run the command in the directory of its server.",
        ),
        Text(
            52,
            "The pepper is not the server's.",
            "pepperがサーバーのものと一致しません",
            "Set PYOCO_AUTH_PEPPER to the value that the gateways have.",
        ),
        Text(
            53,
            "There is no such result.",
            "該当する結果がありません",
            "Check the run's status, and the name of the task.",
        ),
        Text(
            54,
            "The value could not be encoded.",
            "値をエンコードできませんでした",
            "`detail` names the type and its place; return plain data, or bytes.",
        ),
        Text(
            55,
            "The value is too large to be kept.",
            "値が大きすぎるため保存できません",
            "`detail` names the bound; return less, or raise it.",
        ),
        Text(
            56,
            "The stored value is no longer there.",
            "保存された値はもうありません",
            "Repeat the run.",
        ),
        Text(
            58,
            "The run does not wait for its time.",
            "runは開始時刻を待っていません",
            "Only a delayed run, or one that waits for its next try, can be started before its time.",
        ),
        Text(
            59,
            "The schedule was not found.",
            "スケジュールが見つかりません",
            "Check its name and the API key; `pyoco-client schedule list` shows the schedules of the key.",
        ),
        Text(
            60,
            "The name is already in use.",
            "その名前は既に使用されています",
            "Choose another name, or replace it: `PUT` with `If-Match`.",
        ),
        Text(
            61,
            "The tenant has as many of these as it may.",
            "tenantの上限数に達しています",
            "Delete some that are not needed any more, or raise PYOCO_SCHEDULES_MAX.",
        ),
        Text(
            62,
            "The object has changed, or the request does not say which version it means.",
            "対象が変更されたか、版の指定がありません",
            "Read it again, and send its `ETag` as `If-Match`.",
        ),
        Text(
            63,
            "The schedule is invalid.",
            "スケジュールが不正です",
            "`errors` says what is wrong, and where.",
        ),
        Text(
            64,
            "Packs are executed once at most and take no retry policy or timeout.",
            "packの実行は最大1回のため、リトライやタイムアウトは指定できません",
            "A priced run that failed is submitted again as a new one, under another idempotency key.",
        ),
        Text(
            72,
            "The app could not be loaded.",
            "アプリを読み込めません",
            "Correct the module, or the name of the app in it; the message has the line of the import error.",
        ),
        Text(
            73,
            "This part of Celery is not offered.",
            "Celeryのこの機能は提供されていません",
            "The message names it, and what to use instead.",
        ),
        Text(
            75,
            "A stored run record cannot be read.",
            "保存されたrunの記録を読み取れません",
            "Restore the record from a backup, or remove it: `pyoco-server-admin run discard RUN_ID`.",
        ),
    )
}
