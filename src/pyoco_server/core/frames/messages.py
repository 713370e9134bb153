"""All payloads (section 5): frozen classes with `to_payload()` and `read(payload)`, which raises GridRefused."""

from __future__ import annotations

from pyoco_server.core.frames.hello import (
    CAP_DEFAULT,
    CAP_MAX,
    CREDIT_MAX,
    LOGS,
    PROGRAMS_MAX,
    CreditGrant,
    ErrorMessage,
    Heartbeat,
    HelloAck,
    HelloClient,
    HelloWorker,
    NotLeader,
    RunningJob,
)
from pyoco_server.core.frames.jobs import AssignJob, CancelJob, JobRequest, Settled, SubmitAck
from pyoco_server.core.frames.logs import LOG_CREDITS, LogChunk, LogCredit, LogOutcome
from pyoco_server.core.frames.objects import PART_BYTES_MAX, BinaryPart, ObjectAck, ObjectGet
from pyoco_server.core.frames.results import JobResult, OutputRef, fitted

__all__ = [
    "CAP_DEFAULT",
    "CAP_MAX",
    "CREDIT_MAX",
    "LOGS",
    "LOG_CREDITS",
    "PART_BYTES_MAX",
    "PROGRAMS_MAX",
    "AssignJob",
    "BinaryPart",
    "CancelJob",
    "CreditGrant",
    "ErrorMessage",
    "Heartbeat",
    "HelloAck",
    "HelloClient",
    "HelloWorker",
    "JobRequest",
    "JobResult",
    "LogChunk",
    "LogCredit",
    "LogOutcome",
    "NotLeader",
    "ObjectAck",
    "ObjectGet",
    "OutputRef",
    "RunningJob",
    "Settled",
    "SubmitAck",
    "fitted",
]
