"""Protocol between worker and host: a length, then that many bytes. Two sockets, so that nothing needs a lock.

work socket      worker -> host  the greeting (Settings), then jobs exactly as they came from the queue
                 host -> worker  READY with the faults of wheels, or a FAULT; then one outcome per job, prefixed by
                                 MORE, or by LAST if the host exits afterwards
control socket   worker -> host  PROGRESS, GRAPH or CANCEL, with the number of the job it is about
                 host -> worker  one progress per PROGRESS or GRAPH; with the graph of the flow per GRAPH

Tasks run in the host's process, and can write anything to the sockets. So `unpack_...` validates everything: malformed
input raises ValueError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyoco_server.core.outcome import (
    GRAPH_BYTES_MAX,
    GRAPH_TASKS_MAX,
    Cancelled,
    Completed,
    DeadReason,
    Failed,
    Outcome,
    Progress,
)
from pyoco_server.core.run import ERROR_LENGTH_MAX
from pyoco_server.executors.flow.records import slim_records

__all__ = [
    "CANCEL",
    "FAULT",
    "FRAME_BYTES_MAX",
    "GRAPH",
    "LAST",
    "MORE",
    "PROGRESS",
    "READY",
    "Frames",
    "Settings",
    "frame",
    "number",
    "pack_outcome",
    "pack_progress",
    "pack_ready",
    "unpack_outcome",
    "unpack_progress",
    "unpack_ready",
]

READY = b"R"
FAULT = b"!"
PROGRESS = b"p"
#: Like PROGRESS, from a worker that does not have the graph yet. A graph never changes, so it is sent once.
GRAPH = b"g"
CANCEL = b"c"
#: Prefixes of each answer. After a LAST the host exits: another job would be lost.
MORE = b"+"
LAST = b"."

_HEAD = struct.Struct("<I")
#: An outcome is bounded by the snapshot size limit, a job by NATS; anything larger is a defect, not a message.
FRAME_BYTES_MAX = 256 * 1024 * 1024


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

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Settings:
        document = json.loads(data)
        lists = {name: tuple(document.get(name, ())) for name in ("callable_allow", "paths", "modules")}
        return cls(**{**document, **lists})


def frame(body: bytes) -> bytes:
    return _HEAD.pack(len(body)) + body


def number(count: int) -> bytes:
    """Encode the sequence number of a job, which precedes its outcome. Both sides count."""
    return _HEAD.pack(count & 0xFFFFFFFF)


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


def _pack(document: dict[str, Any], progress: Progress, bytes_max: int) -> bytes:
    """Encode a document, once if it is small. The host that made a huge record pays for truncating it; the worker never
    receives it untruncated."""
    document |= {"tasks": progress.tasks, "records": progress.task_records, "truncated": progress.truncated}
    with_graph = {"graph": progress.graph} if progress.graph else {}
    body = _encoded(document | with_graph)
    if len(body) <= bytes_max:
        return body
    # The results of tasks take precedence over the graph.
    if with_graph and len(body := _encoded(document)) <= bytes_max:
        return body
    for records in (slim_records(progress.task_records), {}):
        document |= {"records": records, "truncated": True}
        for more in (with_graph, {}) if with_graph else ({},):
            body = _encoded(document | more)
            if len(body) <= bytes_max:
                return body
    return body


def pack_progress(progress: Progress, bytes_max: int) -> bytes:
    return _pack({}, progress, bytes_max)


def unpack_progress(data: bytes) -> Progress:
    return _progress_of(_read(data))


def pack_outcome(outcome: Outcome, bytes_max: int) -> bytes:
    document: dict[str, Any] = {"end": next(word for word, kind in _ENDS.items() if isinstance(outcome, kind))}
    if isinstance(outcome, Failed):
        document |= {"message": outcome.message[:ERROR_LENGTH_MAX], "why": outcome.why}
    return _pack(document, outcome.progress, bytes_max)


def unpack_outcome(data: bytes) -> Outcome:
    document = _read(data)
    end, message, progress = document.get("end"), document.get("message"), _progress_of(document)
    if end == "failed" and isinstance(message, str):
        return Failed(message=message[:ERROR_LENGTH_MAX], why=DeadReason(str(document.get("why"))), progress=progress)
    if end not in ("completed", "cancelled"):
        raise ValueError("no end of a run")
    return _ENDS[end](progress=progress)


def pack_ready(faults: Mapping[str, str]) -> bytes:
    """`faults`: error texts of wheels, by directory."""
    return READY + _encoded(dict(faults))


def unpack_ready(data: bytes) -> dict[str, str]:
    return {path: str(fault) for path, fault in _read(data.removeprefix(READY)).items()}


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
