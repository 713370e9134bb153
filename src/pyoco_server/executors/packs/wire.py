"""Protocol between worker and pack process, in the frames of `executors/host/wire.py`.

work socket      worker -> host  the greeting (Greeting), then calls
                 host -> worker  READY with the names of its packs, or a FAULT; then one answer per call, prefixed by
                                 MORE, or by LAST if the host exits afterwards
control socket   worker -> host  CANCEL, with the number of the call it is about

An answer is a length, that many bytes of JSON, and the bytes of the artifacts, one after another. A pack runs in the
host's process, and can write anything to the sockets. So `unpack_...` and `check_ready` validate everything: malformed
input raises ValueError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from pyoco_server.core.priced.envelope import Artifact, PackResult
from pyoco_server.core.priced.plain_text import plain
from pyoco_server.executors.packs.port import Call, Executed, Faulted

__all__ = [
    "ANSWER_BYTES_MAX",
    "DETAIL_LENGTH_MAX",
    "READY",
    "Greeting",
    "check_ready",
    "pack_answer",
    "pack_call",
    "pack_ready",
    "unpack_answer",
    "unpack_call",
]

READY = b"R"
#: Maximum size of an answer, including artifacts. It is in memory several times until it is stored.
ANSWER_BYTES_MAX = 32 * 1024 * 1024
#: Maximum length of an error detail for the owner of the run.
DETAIL_LENGTH_MAX = 300

_HEAD = struct.Struct("<I")
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_LOGS = ("discard_log", "blocked_log")


@dataclass(frozen=True)
class Greeting:
    """What a pack process needs before its first call."""

    #: module:function that creates the executors of its packs.
    loader: str
    #: The packs to execute: names, and the place of each executor (empty: a built-in one).
    packs: Mapping[str, str]
    #: The settings of packs. They include keys, so they are sent over the socket: the arguments of a process are
    #: visible to everyone, and its environment is inherited by the processes it starts.
    config: Mapping[str, Any] = field(repr=False)
    #: 0: no limit.
    memory_bytes_max: int

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Greeting:
        return cls(**json.loads(data))


def pack_ready(packs: Sequence[str]) -> bytes:
    return READY + json.dumps(sorted(packs)).encode()


def check_ready(data: bytes, packs: Iterable[str]) -> None:
    """Validate the READY message: it must name exactly these packs. A process that named more would receive the calls
    of other packs."""
    if not data.startswith(READY) or _read(data.removeprefix(READY)) != sorted(packs):
        raise ValueError("not the packs that it should execute")


def pack_call(call: Call) -> bytes:
    return json.dumps(asdict(call)).encode()


def unpack_call(data: bytes) -> Call:
    """Decode a call. It comes from our own worker, so it is not validated."""
    return Call(**json.loads(data))


def pack_answer(answer: Executed | Faulted) -> bytes:
    """Encode an answer. A result that JSON cannot represent, or that is too large, is a fault of the pack: the answer
    then says so."""
    if isinstance(answer, Executed):
        try:
            return _pack_result(answer.result)
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            detail = str(error) if isinstance(error, _TooLarge) else "the pack returned what cannot be stored"
            answer = Faulted(detail)
    fault = {"fault": plain(answer.detail, DETAIL_LENGTH_MAX), "where": answer.where}
    head = json.dumps(fault | {"is_unavailable": answer.is_unavailable}).encode()
    return _HEAD.pack(len(head)) + head


class _TooLarge(ValueError):
    def __init__(self) -> None:
        super().__init__(f"the pack returned more than {ANSWER_BYTES_MAX >> 20} MiB")


def _pack_result(result: PackResult) -> bytes:
    if not isinstance(result, PackResult):
        raise TypeError("no PackResult")
    files = [(each.name, each.content_type, bytes(memoryview(each.data))) for each in result.artifacts]
    head = _encode(
        {
            "data": result.data,
            "actual_cost_usd_micros": result.actual_cost_usd_micros,
            "tokens_consumed": result.tokens_consumed,
            "reliability_score": result.reliability_score,
            "meta": result.meta,
            "discard_log": list(result.discard_log),
            "blocked_log": list(result.blocked_log),
            "artifacts": [
                {"name": name, "content_type": content_type, "bytes": len(data)} for name, content_type, data in files
            ],
        }
    )
    if _HEAD.size + len(head) + sum(len(data) for _, _, data in files) > ANSWER_BYTES_MAX:
        raise _TooLarge
    return b"".join((_HEAD.pack(len(head)), head, *(data for _, _, data in files)))


def _encode(document: dict[str, Any]) -> bytes:
    """Encode strictly: no NaN, no lone surrogates, and no key that is not a string, which the encoder would convert to
    one."""
    written = _encoder.encode(document).encode()
    waiting: list[Any] = [document]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if not all(isinstance(name, str) for name in item):
                raise TypeError("a name that is not text")
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return written


def unpack_answer(body: bytes) -> Executed | Faulted:
    """Decode an answer, O(size). Members of the wrong type are the pack's fault. Raises ValueError if the bytes are not
    an answer at all."""
    if len(body) < _HEAD.size:
        raise ValueError("no answer")
    (length,) = _HEAD.unpack_from(body)
    end = _HEAD.size + length
    if end > len(body):
        raise ValueError("half an answer")
    head = _read(body[_HEAD.size : end])
    if not isinstance(head, dict):
        raise ValueError("no answer of an object")  # noqa: TRY004  (the text is what is wrong)
    if "fault" in head:
        return _fault_of(head)
    files = _files_of(head, body, end)
    wrong = _wrong_member(head)
    if wrong is not None:
        return Faulted(f"the pack returned {wrong}")
    return Executed(_result_of(head, files), len(body))


def _fault_of(head: Mapping[str, Any]) -> Faulted:
    detail, where, is_unavailable = head["fault"], head.get("where"), head.get("is_unavailable", False)
    if not isinstance(detail, str) or not isinstance(where, str | None) or not isinstance(is_unavailable, bool):
        raise ValueError("no fault of a pack")  # noqa: TRY004  (the text is what is wrong)
    where = where if where is None else plain(where, DETAIL_LENGTH_MAX)
    return Faulted(plain(detail, DETAIL_LENGTH_MAX), where, is_unavailable)


def _files_of(head: Mapping[str, Any], body: bytes, at: int) -> list[tuple[Mapping[str, Any], bytes]]:
    listed = head.get("artifacts")
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ValueError("no list of artifacts")
    files: list[tuple[Mapping[str, Any], bytes]] = []
    for item in listed:
        size = item.get("bytes")
        if type(size) is not int or not 0 <= size <= len(body) - at:
            raise ValueError("no size of an artifact")
        files.append((item, body[at : at + size]))
        at += size
    if at != len(body):
        raise ValueError("more bytes than artifacts")
    return files


def _wrong_member(head: Mapping[str, Any]) -> str | None:
    """Describe what the pack got wrong; artifact names and the like are validated when they are sealed."""
    score = head.get("reliability_score", "not told")
    lines = [head.get(name) for name in _LOGS]
    rules = {
        "data that is no object": isinstance(head.get("data"), dict),
        "a meta that is no object": isinstance(head.get("meta"), dict),
        "a cost that is no whole number, or below zero": _is_count(head.get("actual_cost_usd_micros")),
        "tokens_consumed that is no whole number, or below zero": _is_count(head.get("tokens_consumed")),
        "a log that is no list of objects": all(
            isinstance(log, list) and all(isinstance(line, dict) for line in log) for log in lines
        ),
        "a reliability_score that is not between 0 and 1": score is None or _is_score(score),
        "an artifact without a name or a content type": all(
            isinstance(item.get(name), str) for item in head["artifacts"] for name in ("name", "content_type")
        ),
    }
    return next((wrong for wrong, is_right in rules.items() if not is_right), None)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0  # not isinstance: True is also an int


def _is_score(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _result_of(head: Mapping[str, Any], files: Sequence[tuple[Mapping[str, Any], bytes]]) -> PackResult:
    return PackResult(
        data=head["data"],
        actual_cost_usd_micros=head["actual_cost_usd_micros"],
        artifacts=tuple(
            Artifact(name=item["name"], content_type=item["content_type"], data=data) for item, data in files
        ),
        discard_log=head["discard_log"],
        blocked_log=head["blocked_log"],
        tokens_consumed=head["tokens_consumed"],
        reliability_score=head["reliability_score"],
        meta=head["meta"],
    )


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def _read(data: bytes) -> Any:
    try:
        return _decoder.decode(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error
