"""Protocol between worker and host: a length, then that many bytes. Two sockets, so that nothing needs a lock.

work socket      worker -> host  the greeting (Settings), then the jobs as they came from the queue, each after the
                                 tries of its tasks so far
                 host -> worker  READY with the faults of wheels and the flows of the app, or a FAULT; then one outcome
                                 per job, prefixed by MORE, or by LAST if the host exits afterwards
control socket   worker -> host  PROGRESS, GRAPH or CANCEL, with the number of the job it is about
                 host -> worker  one progress per PROGRESS or GRAPH; with the graph of the flow per GRAPH; and REMARK
                                 at any time, with the number of the job

Tasks run in the host's process, and can write anything to the sockets. So `unpack_...` validates everything: malformed
input raises ValueError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyoco_server.core.offered_flow import OfferedFlow, read_offered_flow
from pyoco_server.core.outcome import (
    GRAPH_BYTES_MAX,
    GRAPH_TASKS_MAX,
    Cancelled,
    Completed,
    DeadReason,
    Failed,
    Outcome,
    Progress,
    Terms,
)
from pyoco_server.core.retries.matching import MEMORY, UNNAMED, Failure, raised
from pyoco_server.core.retries.policy import RetryPolicy
from pyoco_server.core.retries.reading import RUN_TIMEOUT_MAX, policy_of_document
from pyoco_server.core.retries.task_course import TaskCourse
from pyoco_server.core.run import ERROR_LENGTH_MAX
from pyoco_server.core.values.kept import Kept
from pyoco_server.executors.flow.limits import OutputLimits
from pyoco_server.executors.flow.records import slim_records
from pyoco_server.executors.flow.spool import SpoolFile

if TYPE_CHECKING:
    from pyoco_server.executors.flow.outputs import OutputKeeper

__all__ = [
    "APP_FAULT",
    "CANCEL",
    "FAULT",
    "FRAME_BYTES_MAX",
    "GRAPH",
    "LAST",
    "MORE",
    "PROGRESS",
    "READY",
    "REMARK",
    "Frames",
    "Remark",
    "Settings",
    "frame",
    "number",
    "pack_outcome",
    "pack_progress",
    "pack_ready",
    "pack_remark",
    "pack_work",
    "unpack_outcome",
    "unpack_progress",
    "unpack_ready",
    "unpack_remark",
    "unpack_work",
]

READY = b"R"
FAULT = b"!"
#: A FAULT of the app to be served.
APP_FAULT = b"a"
PROGRESS = b"p"
#: Like PROGRESS, from a worker that does not have the graph yet. A graph never changes, so it is sent once.
GRAPH = b"g"
CANCEL = b"c"
#: What the flow or one of its tasks says about its tries: the worker has to know it before the outcome.
REMARK = b"n"
#: Prefixes of each answer. After a LAST the host exits: another job would be lost.
MORE = b"+"
LAST = b"."

_HEAD = struct.Struct("<I")
#: An outcome is bounded by the snapshot size limit, a job by NATS; anything larger is a defect, not a message.
FRAME_BYTES_MAX = 256 * 1024 * 1024
_NAME_LENGTH_MAX = 512


@dataclass(frozen=True)
class Settings:
    """What a host needs before its first job."""

    #: module:callable, or None for a worker that only runs flow.yaml jobs.
    resolver: str | None
    callable_allow: tuple[str, ...]
    workflow_bytes_max: int
    #: Records larger than this are truncated by the host.
    records_bytes_max: int
    #: 0: no limit.
    memory_bytes_max: int
    #: Directories of wheels for `sys.path`, and the modules they contain. They never change for a host.
    paths: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    outputs: OutputLimits = field(default_factory=OutputLimits)
    #: module:app, instead of a resolver.
    app: str | None = None

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Settings:
        document = json.loads(data)
        lists = {name: tuple(document.get(name, ())) for name in ("callable_allow", "paths", "modules")}
        outputs = OutputLimits(**document.get("outputs", {}))
        return cls(**{**document, **lists, "outputs": outputs})


def frame(body: bytes) -> bytes:
    return _HEAD.pack(len(body)) + body


def number(count: int) -> bytes:
    """Encode the sequence number of a job, which precedes its outcome. Both sides count."""
    return _HEAD.pack(count & 0xFFFFFFFF)


def pack_work(data: bytes, task_tries: Mapping[str, Any]) -> bytes:
    tries = _encoded(dict(task_tries)) if task_tries else b""
    return _HEAD.pack(len(tries)) + tries + data


def unpack_work(body: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return the job and the tries of its tasks in earlier attempts."""
    (length,) = _HEAD.unpack_from(body)
    end = _HEAD.size + length
    return body[end:], json.loads(body[_HEAD.size : end]) if length else {}


@dataclass(frozen=True)
class Remark:
    """What a host says while a run goes on: the terms of the flow, or the state of one of its tasks."""

    terms: Terms | None = None
    task: str = ""
    #: Seconds from now after which the try of the task is too long. None: no limit, or it is over.
    timeout: float | None = None
    retry: RetryPolicy | None = None
    course: TaskCourse | None = None


class Frames:
    """Splits a byte stream, cut anywhere, into bodies."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer, self._bytes_max = bytearray(), bytes_max

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        bodies: list[bytes] = []
        while len(self._buffer) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._buffer)
            if length > self._bytes_max:
                raise ValueError(f"a frame of {length} bytes")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[_HEAD.size : end]))
            del self._buffer[:end]
        return bodies


_ENDS: dict[str, type[Outcome]] = {"completed": Completed, "cancelled": Cancelled, "failed": Failed}
#: Not escaped, so that a text has as many bytes here as in the snapshot, in any language.
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _encoded(document: dict[str, Any]) -> bytes:
    return _encoder.encode(document).encode("utf-8", "surrogatepass")  # matches how json.loads decodes bytes


def _pack(variants: Iterator[dict[str, Any]], progress: Progress, bytes_max: int) -> bytes:
    """Encode the first variant that fits, with the graph if possible: the results of tasks take precedence over it. The
    host that made a huge record pays for truncating it; the worker never receives it untruncated."""
    body = b""
    for document in variants:
        for more in ({"graph": progress.graph}, {}) if progress.graph else ({},):
            body = _encoded(document | more)
            if len(body) <= bytes_max:
                return body
    return body


def _variants(document: dict[str, Any], progress: Progress) -> Iterator[dict[str, Any]]:
    document |= {"tasks": progress.tasks}
    yield document | {"records": progress.task_records, "truncated": progress.truncated}
    yield document | {"records": slim_records(progress.task_records), "truncated": True}
    yield document | {"records": {}, "truncated": True}


def pack_progress(progress: Progress, bytes_max: int) -> bytes:
    return _pack(_variants({}, progress), progress, bytes_max)


def pack_outcome(outcome: Outcome, bytes_max: int, outputs: OutputKeeper | None = None) -> bytes:
    document: dict[str, Any] = {"end": next(word for word, kind in _ENDS.items() if isinstance(outcome, kind))}
    if isinstance(outcome, Failed):
        cause = {"kind": outcome.cause.kind, "names": outcome.cause.names}
        document |= {"message": outcome.message[:ERROR_LENGTH_MAX], "why": outcome.why, "cause": cause}
    progress = outcome.progress
    variants = _variants(document, progress) if outputs is None else _with_kept(document, progress, outputs, bytes_max)
    return _pack(variants, progress, bytes_max)


def _with_kept(
    document: dict[str, Any], progress: Progress, outputs: OutputKeeper, bytes_max: int
) -> Iterator[dict[str, Any]]:
    """Before the outputs are dropped from the task records, all of them are kept for the store."""
    records = progress.task_records
    if outputs.spool.size <= bytes_max:
        yield from islice(_variants(document | _kept_form(outputs), progress), 1)
    if outputs.spool.size:
        shorter = replace(progress, task_records=outputs.without_stored(records), truncated=True)
        yield from islice(_variants(document | _kept_form(outputs), shorter), 1)
    outputs.keep_rest()
    yield from islice(_variants(document | _kept_form(outputs), progress), 1, None)


def _kept_form(outputs: OutputKeeper) -> dict[str, Any]:
    kept = outputs.kept()
    form = {**kept.stored(), "parts": kept.parts, "place": outputs.spool.place} if kept.parts else kept.stored()
    return {"kept": form} if form else {}


def unpack_progress(data: bytes) -> Progress:
    return _progress_of(_read(data))


def unpack_outcome(data: bytes) -> Outcome:
    document = _read(data)
    end, message, progress = document.get("end"), document.get("message"), _progress_of(document)
    if end not in _ENDS:
        raise ValueError("no end of a run")
    if end == "failed" and not isinstance(message, str):
        raise ValueError("no message of a failed run")
    kept = _kept_of(document.get("kept"))
    if end == "failed":
        why = DeadReason(str(document.get("why")))
        cause = _cause_of(document.get("cause"))
        return Failed(message=str(message)[:ERROR_LENGTH_MAX], why=why, cause=cause, progress=progress, kept=kept)
    return _ENDS[end](progress=progress, kept=kept)


def _cause_of(document: Any) -> Failure:
    """Only what an exception can be: a run does not decide that it was lost or took too long."""
    names = document.get("names") if isinstance(document, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("no cause of a failed run")
    if not names:
        return UNNAMED
    return raised([name[:_NAME_LENGTH_MAX] for name in names], is_memory=document.get("kind") == MEMORY)


def pack_remark(document: Mapping[str, Any]) -> bytes:
    return _encoded(dict(document))


def unpack_remark(data: bytes) -> Remark:
    document = _read(data)
    if isinstance(said := document.get("terms"), dict):
        retry = said.get("retry")
        if not (retry is None or isinstance(retry, dict)):
            raise ValueError("no policy of a flow")
        # A policy that is not valid is none.
        is_policy = retry == {} or policy_of_document(retry) is not None
        return Remark(Terms(retry if is_policy else None, _seconds_of(said.get("timeout"))))
    task, retry = document.get("task"), document.get("retry")
    if not isinstance(task, str) or not (retry is None or isinstance(retry, dict)):
        raise ValueError("no task of a flow")
    course = None if document.get("course") is None else TaskCourse.read(document["course"])
    return Remark(None, task, _seconds_of(document.get("timeout")), policy_of_document(retry), course)


def _seconds_of(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value <= RUN_TIMEOUT_MAX:
        raise ValueError("no timeout")
    return float(value)


def _kept_of(document: Any) -> Kept | None:
    if document is None:
        return None
    if not isinstance(document, dict):
        raise ValueError("no values")  # noqa: TRY004  (what is wrong is the text)
    result, outputs, parts = document.get("result"), document.get("outputs", {}), document.get("parts", [])
    if not (result is None or isinstance(result, dict)) or not isinstance(outputs, dict) or not _are_sizes(parts):
        raise ValueError("no entries of values")
    if not all(isinstance(entry, dict) for entry in outputs.values()):
        raise ValueError("no entries of values")
    place = document.get("place")
    if not parts:
        return Kept(result, outputs)
    if not isinstance(place, list) or not _are_sizes(place) or len(place) != 2:
        raise ValueError("no place of values")
    try:
        return Kept(result, outputs, tuple(parts), SpoolFile.of(place[0], place[1]))
    except OSError as error:
        raise ValueError(f"no file of values: {error}") from error


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


def pack_ready(faults: Mapping[str, str], offered: Sequence[OfferedFlow] | None = None) -> bytes:
    """`faults`: error texts of wheels, by directory. `offered`: the flows of an app; None: a resolver is used."""
    flows = None if offered is None else [flow.document() for flow in offered]
    return READY + _encoded({"faults": dict(faults), "offered": flows})


def unpack_ready(data: bytes) -> tuple[dict[str, str], tuple[OfferedFlow, ...] | None]:
    document = _read(data.removeprefix(READY))
    faults, offered = document.get("faults"), document.get("offered")
    if not isinstance(faults, dict) or not (offered is None or isinstance(offered, list)):
        raise ValueError("no faults of wheels, or no flows of an app")
    flows = None if offered is None else tuple(map(read_offered_flow, offered))
    return {path: str(fault) for path, fault in faults.items()}, flows


def _progress_of(document: Mapping[str, Any]) -> Progress:
    tasks, records, truncated = (document.get(name) for name in ("tasks", "records", "truncated"))
    if not isinstance(tasks, dict) or not all(isinstance(state, str) for state in tasks.values()):
        raise ValueError("no states of tasks")
    if not isinstance(records, dict) or not all(isinstance(record, dict) for record in records.values()):
        raise ValueError("no records of tasks")
    return Progress(tasks, records, bool(truncated), _graph_of(document))


def _graph_of(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the graph unchanged. One larger than a host may send is dropped: it would stay in the record forever."""
    graph = document.get("graph")
    if graph is None:
        return {}
    if not isinstance(graph, dict) or not all(isinstance(names, list) for names in graph.values()):
        raise ValueError("no graph of tasks")
    if not all(isinstance(name, str) for names in graph.values() for name in names):
        raise ValueError("no names of tasks")
    if len(graph) > GRAPH_TASKS_MAX or len(_encoder.encode(graph).encode("utf-8", "replace")) > GRAPH_BYTES_MAX:
        return {}
    return graph


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def _read(data: bytes) -> dict[str, Any]:
    try:
        document = _decoder.decode(data.decode("utf-8", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(document, dict):
        raise ValueError("no JSON object")  # noqa: TRY004  (what is wrong is the text)
    return document
