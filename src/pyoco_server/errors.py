"""Every error we raise, with the ids and texts a user meets.

PyocoError
├── Refused               the input is wrong (422)
│   ├── InvalidFlow       a flow.yaml breaks the policy
│   ├── InvalidWheel      a file is not the wheel it says it is
│   ├── InvalidListQuery
│   └── InvalidWorkersRequest
├── TooLarge              the input is too big (413)
│   ├── WorkflowTooLarge
│   └── WheelTooLarge
├── TooSlow               the input did not come in time (408)
├── KeyMissing            no API key (401)
├── KeyRefused            an API key that does not open (403)
├── RateLimited           too many bad API keys from one address (429)
├── DashboardReadOnly     a browser asked for a change, and the dashboard may only look (403)
├── NotFound              (404)
│   ├── RunNotFound
│   ├── LetterNotFound
│   ├── WorkerNotFound
│   ├── WheelNotFound
│   └── ObjectNotFound
├── Conflict              the request does not fit what is there (409)
│   ├── KeyReused         an idempotency key was used for another submission
│   ├── WheelNotNewer     a wheel of the same or a newer version is registered
│   └── NotRepeatable     what a run was submitted with is no longer kept
├── Unavailable           NATS did not answer: the write may have happened (503)
│   ├── NotStored         NATS did not answer, and nothing was stored
│   ├── TooManyWatchers   this gateway serves as many event streams as it may
│   ├── TooManyTransfers  this gateway moves as many files as it may
│   └── NoRoom            the disk is full: of this process, or of NATS
├── Corrupt               stored bytes are not what they should be
├── InvalidJob            a queue message nobody can run
├── FlowNotResolved       this worker cannot build the flow
│   └── CallableRefused   a flow.yaml names code that this worker does not offer
├── WheelSyncFailed       a worker could not install a wheel; it tries again
├── BackupFailed          a backup could not be made, or cannot be restored
├── SnapshotTooLargeError a snapshot above the cap even after compaction
├── UsageError            a command line that cannot be obeyed
└── SettingError          a setting that does not parse
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "CATALOGUE",
    "BackupFailed",
    "CallableRefused",
    "Conflict",
    "Corrupt",
    "DashboardReadOnly",
    "FlowNotResolved",
    "InvalidFlow",
    "InvalidJob",
    "InvalidListQuery",
    "InvalidWheel",
    "InvalidWorkersRequest",
    "KeyMissing",
    "KeyRefused",
    "KeyReused",
    "LetterNotFound",
    "NoRoom",
    "NotFound",
    "NotRepeatable",
    "NotStored",
    "ObjectNotFound",
    "Problem",
    "PyocoError",
    "RateLimited",
    "Refused",
    "RunNotFound",
    "SettingError",
    "SnapshotTooLargeError",
    "Text",
    "TooLarge",
    "TooManyTransfers",
    "TooManyWatchers",
    "TooSlow",
    "Unavailable",
    "UsageError",
    "WheelNotFound",
    "WheelNotNewer",
    "WheelSyncFailed",
    "WheelTooLarge",
    "WorkerNotFound",
    "WorkflowTooLarge",
]


@dataclass(frozen=True)
class Text:
    """One line of the catalogue: error n always belongs to message n (FLOW-565)."""

    number: int
    #: Shown to users; both languages are product texts.
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
    )
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an input: where it is, what it is, and a word for programs."""

    loc: tuple[str | int, ...]
    msg: str
    type: str = "invalid"


class PyocoError(Exception):
    """Something went wrong."""

    #: The line of the catalogue this error belongs to.
    number: ClassVar[int] = 25
    #: The short English phrase of an HTTP error body (section 5 of the contract).
    phrase: ClassVar[str] = "internal error"

    def __init__(self, message: str = "", *, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message or (self.__doc__ or "").split("\n", 1)[0])
        self.problems = problems

    @property
    def text(self) -> Text:
        return CATALOGUE[self.number]


class Refused(PyocoError):
    """The request is not valid."""

    number = 2
    phrase = "invalid request"


class InvalidFlow(Refused):
    """The flow.yaml breaks the policy."""


class InvalidWheel(Refused):
    """The file is not the wheel it says it is."""


class InvalidListQuery(Refused):
    """The list query is not valid."""

    number = 17
    phrase = "invalid list query"


class InvalidWorkersRequest(Refused):
    """The workers request is not valid."""

    number = 19
    phrase = "invalid workers request"


class TooLarge(PyocoError):
    """The request body is too large."""

    number = 2
    phrase = "request body too large"


class WorkflowTooLarge(TooLarge):
    """The workflow file is too large."""

    number = 16
    phrase = "workflow file too large"


class WheelTooLarge(TooLarge):
    """The wheel is too large."""

    phrase = "wheel too large"


class TooSlow(PyocoError):
    """The request body did not come in time."""

    number = 2
    phrase = "request timeout"


class KeyMissing(PyocoError):
    """An API key is required."""

    number = 14
    phrase = "api key required"


class KeyRefused(PyocoError):
    """The API key does not open this server."""

    number = 15
    phrase = "api key invalid"


class RateLimited(PyocoError):
    """Too many bad API keys came from this address."""

    number = 29
    phrase = "too many bad api keys"

    def __init__(
        self, message: str = "", *, problems: tuple[Problem, ...] = (), retry_after_seconds: float = 1.0
    ) -> None:
        super().__init__(message, problems=problems)
        self.retry_after_seconds = retry_after_seconds


class DashboardReadOnly(PyocoError):
    """The dashboard is read-only: a browser may look and not act."""

    number = 35
    phrase = "dashboard is read-only"


class Conflict(PyocoError):
    """The request does not fit what is there."""

    number = 2
    phrase = "conflict"


class KeyReused(Conflict):
    """The idempotency key was used for another submission."""

    number = 26
    phrase = "idempotency key reused"


class WheelNotNewer(Conflict):
    """A wheel of the same or a newer version is registered."""

    number = 22
    phrase = "same/older version is rejected"


class NotRepeatable(Conflict):
    """What the run was submitted with is no longer kept, so it cannot be run again."""

    number = 28
    phrase = "run cannot be repeated"


class NotFound(PyocoError):
    """There is no such thing."""

    number = 2
    phrase = "not found"


class RunNotFound(NotFound):
    """There is no such run."""

    number = 5
    phrase = "run not found"


class LetterNotFound(NotFound):
    """There is no such dead letter."""

    number = 27
    phrase = "dead letter not found"


class WorkerNotFound(NotFound):
    """There is no such worker."""

    number = 20
    phrase = "worker not found"


class WheelNotFound(NotFound):
    """There is no such wheel."""

    number = 23
    phrase = "wheel not found"


class ObjectNotFound(NotFound):
    """There is no such object."""


class Unavailable(PyocoError):
    """NATS did not answer in time; what was asked may or may not have happened."""

    number = 3
    phrase = "nats unavailable"


class NotStored(Unavailable):
    """NATS could not be reached; nothing was stored."""


class TooManyWatchers(Unavailable):
    """This gateway serves as many event streams as it may."""

    number = 30
    phrase = "too many watchers"


class TooManyTransfers(Unavailable):
    """This gateway moves as many files as it may."""

    number = 34
    phrase = "too many transfers"


class NoRoom(Unavailable):
    """There is no room left on the disk."""

    number = 32
    phrase = "no room on the disk"


class Corrupt(PyocoError):
    """Stored bytes are not what they should be: another digest, or a record that cannot be read."""

    phrase = "stored data is damaged"


class InvalidJob(PyocoError):
    """The queue message is not a job anybody can run."""

    number = 12
    phrase = "invalid job"

    def __init__(self, message: str, *, run_id: str | None = None, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message, problems=problems)
        #: Known when the message was broken but still told which run it belongs to (FLOW-316).
        self.run_id = run_id


class FlowNotResolved(PyocoError):
    """This worker cannot build the flow."""

    number = 6
    phrase = "flow not found"


class CallableRefused(FlowNotResolved):
    """The flow.yaml names code that this worker does not offer."""

    number = 31
    phrase = "callable not offered"


class WheelSyncFailed(PyocoError):
    """A wheel could not be installed."""

    number = 24
    phrase = "wheel sync failed"


class BackupFailed(PyocoError):
    """The backup could not be made or restored."""

    number = 33
    phrase = "backup failed"


class SnapshotTooLargeError(PyocoError, ValueError):
    """The snapshot is above the cap even after compaction."""

    number = 10
    phrase = "snapshot too large"


class UsageError(PyocoError):
    """The command line cannot be obeyed."""

    number = 18
    phrase = "invalid arguments"


class SettingError(PyocoError, ValueError):
    """A setting does not parse."""

    number = 18
    phrase = "invalid setting"
