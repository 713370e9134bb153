"""The responses of JetStream to writes and API calls, and its error codes."""

from __future__ import annotations

import re

import msgspec

from pyoco_server.errors import NotStored
from pyoco_server.ports.nats.faults import Rejected, StreamFull

__all__ = [
    "NEVER",
    "NOT_YET",
    "STREAM_NOT_FOUND",
    "Fault",
    "StoreReply",
    "fault_of",
    "read_answer",
    "refusal",
    "stream_of",
    "swallower",
]

#: "System temporarily unavailable" during an election. Certainly not stored.
_NOT_YET = 10008
STREAM_NOT_FOUND = 10059
#: The part of an API subject before the name of a stream.
_OF_STREAM = re.compile(r"(?:STREAM\.(?:MSG\.)?[A-Z]+|CONSUMER\.(?:DURABLE\.|MSG\.)?[A-Z]+)\.([^.]+)")
#: The errors of a cluster that is still forming: the same, and "no suitable peers" for the number of replicas.
NOT_YET = frozenset({_NOT_YET, 10005})
#: The account, the server or its disk has no room. 10077, a stream at a limit of its own, is not the disk's fault.
_FULL = frozenset({10002, 10023, 10047})
_NO_SPACE = "no space left on device"
#: Conditions that no stream fulfils: it responds with the code below and stores nothing. Another refusal, such as "too
#: many requests", may overtake queued messages and proves nothing.
_WRONG_STREAM = 10060
NEVER = {"Nats-Expected-Stream": "-", "Nats-Expected-Last-Sequence": str(2**62)}


class Fault(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class StoreReply(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: Fault | None = None


class _Verdict(msgspec.Struct):
    """The error of any API response, whose `stream` may be of any type."""

    error: Fault | None = None


read_answer = msgspec.json.Decoder(StoreReply).decode
_read_verdict = msgspec.json.Decoder(_Verdict).decode


def fault_of(data: bytes) -> Fault | None:
    """Return the error of a response. None: the call succeeded."""
    return _read_verdict(data).error


def stream_of(api_subject: str) -> str:
    """Return the stream of an API subject without its `$JS.API.`; "" if it has none."""
    match = _OF_STREAM.match(api_subject)
    return match[1] if match is not None else ""


def refusal(subject: str, answer: StoreReply, fault: Fault) -> Exception:
    """Return the exception for a refused write. StreamFull: there is no room for `answer.stream`."""
    if fault.err_code == _NOT_YET:
        return NotStored(f"{subject} has no leader yet")
    if fault.err_code in _FULL or _NO_SPACE in fault.description:
        return StreamFull(f"the store of NATS has no room for {answer.stream}: {fault.description} ({fault.err_code})")
    return Rejected(fault.err_code, fault.description)


def swallower(data: bytes) -> str:
    """Return the stream that has refused the conditions of `NEVER`; "" if the response is a different one."""
    answer = read_answer(data)
    return answer.stream if answer.error is not None and answer.error.err_code == _WRONG_STREAM else ""
