"""Clients for the HTTP API: what a program imports (section 18.4 of the contract).

`PyocoHttpClient` blocks; `AsyncPyocoHttpClient` is the same for asyncio. Results are dicts and lists; their types are
exported here too, for editors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyoco_server.client.dead_letter_results import (
    DlqCounts,
    DlqGroup,
    DlqMessage,
    DlqMessageDeleted,
    DlqMessageDetail,
    DlqMessageRedriven,
    DlqMessagesDeleted,
    DlqMessagesRedriven,
    DlqPage,
    DlqProblem,
)
from pyoco_server.client.faults import AnswerDamaged, PackProblem
from pyoco_server.client.files import SourceChanged
from pyoco_server.client.flow_results import FlowList, FlowShown
from pyoco_server.client.job_results import (
    Artifact,
    ArtifactSaved,
    DlqMessageRequeued,
    ExecAcl,
    ExecClient,
    ExecEvent,
    ExecState,
    JobAccepted,
)
from pyoco_server.client.log_results import LogFilters, LogLine
from pyoco_server.client.priced_results import (
    Budget,
    BudgetJournal,
    BudgetJournalLine,
    BudgetList,
    BudgetSpend,
    PackEnvelope,
    PackFile,
    PackImage,
    PackInput,
    PackList,
    PackOffer,
    PackProblemBody,
    PackReceipt,
    PackResult,
    PackRun,
)
from pyoco_server.client.results import (
    Attention,
    AttentionItem,
    ErrorBody,
    Health,
    Problem,
    Queue,
    Queues,
    Ready,
    RecentMetrics,
    WaitingPacks,
    WorkerPatched,
    WorkerRecord,
)
from pyoco_server.client.run_results import (
    RunAccepted,
    RunAttempt,
    RunBatchAnswer,
    RunBatchItem,
    RunBatchLine,
    RunLastChange,
    RunListResponse,
    RunRepeated,
    RunsCancelled,
    RunSnapshot,
    RunStatus,
    RunSummary,
    RunTasks,
    RunWaiting,
    RunWatchEvent,
)
from pyoco_server.client.schedule_results import (
    AskedSchedule,
    ScheduleBackfilled,
    ScheduleList,
    SchedulePreview,
    ScheduleShown,
    ScheduleTick,
    ScheduleTicks,
    ScheduleTriggered,
)
from pyoco_server.client.sync import PyocoHttpClient
from pyoco_server.client.wheel_results import WheelArtifact, WheelDeleted, WheelDownloaded, WheelHistoryEvent
from pyoco_server.errors import SeveralServers

if TYPE_CHECKING:
    from pyoco_server.client.aio import AsyncPyocoHttpClient

__all__ = [
    "AnswerDamaged",
    "Artifact",
    "ArtifactSaved",
    "AskedSchedule",
    "AsyncPyocoHttpClient",
    "Attention",
    "AttentionItem",
    "Budget",
    "BudgetJournal",
    "BudgetJournalLine",
    "BudgetList",
    "BudgetSpend",
    "DlqCounts",
    "DlqGroup",
    "DlqMessage",
    "DlqMessageDeleted",
    "DlqMessageDetail",
    "DlqMessageRedriven",
    "DlqMessageRequeued",
    "DlqMessagesDeleted",
    "DlqMessagesRedriven",
    "DlqPage",
    "DlqProblem",
    "ErrorBody",
    "ExecAcl",
    "ExecClient",
    "ExecEvent",
    "ExecState",
    "FlowList",
    "FlowShown",
    "Health",
    "JobAccepted",
    "LogFilters",
    "LogLine",
    "PackEnvelope",
    "PackFile",
    "PackImage",
    "PackInput",
    "PackList",
    "PackOffer",
    "PackProblem",
    "PackProblemBody",
    "PackReceipt",
    "PackResult",
    "PackRun",
    "Problem",
    "PyocoHttpClient",
    "Queue",
    "Queues",
    "Ready",
    "RecentMetrics",
    "RunAccepted",
    "RunAttempt",
    "RunBatchAnswer",
    "RunBatchItem",
    "RunBatchLine",
    "RunLastChange",
    "RunListResponse",
    "RunRepeated",
    "RunSnapshot",
    "RunStatus",
    "RunSummary",
    "RunTasks",
    "RunWaiting",
    "RunWatchEvent",
    "RunsCancelled",
    "ScheduleBackfilled",
    "ScheduleList",
    "SchedulePreview",
    "ScheduleShown",
    "ScheduleTick",
    "ScheduleTicks",
    "ScheduleTriggered",
    "SeveralServers",
    "SourceChanged",
    "WaitingPacks",
    "WheelArtifact",
    "WheelDeleted",
    "WheelDownloaded",
    "WheelHistoryEvent",
    "WorkerPatched",
    "WorkerRecord",
]


def __getattr__(name: str) -> Any:
    """Import the asyncio client on first use: programs that block do not need asyncio."""
    if name == "AsyncPyocoHttpClient":
        from pyoco_server.client.aio import AsyncPyocoHttpClient  # noqa: PLC0415

        return AsyncPyocoHttpClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
