"""Parse the message of a job (GRID-52), as read from the queue, a record or a dead letter.

Any client with access to the queue can write to it, so every member is validated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pyoco_server.core.names import is_run_id
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.job import (
    InlineInputs,
    InputFile,
    Inputs,
    JobAsk,
    ObjectInputs,
    ProgramJob,
    check_ask,
    decode_inline,
)
from pyoco_server.core.programs.names import check_file_names
from pyoco_server.errors import InvalidJob

__all__ = ["decode_job", "read_job"]

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_OBJECT_LENGTH_MAX = 512
_TEXT_LENGTH_MAX = 512


class _InvalidMember(ValueError):
    """An invalid member. The text repeats none of its content (GRID-169)."""


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number that JSON does not have")
    return number


_decoder = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def decode_job(data: bytes) -> ProgramJob:
    """Parse a message. Raises InvalidJob, with the run id if that is valid. O(size)."""
    try:
        message = _decoder.decode(data.decode())
    except (ValueError, RecursionError):  # the original text may repeat content
        raise InvalidJob("the job is not JSON") from None
    if not isinstance(message, dict):
        raise InvalidJob("the job is not a JSON object")
    return read_job(message)


def read_job(message: Mapping[str, Any]) -> ProgramJob:
    """Like `decode_job`, for a message that is already parsed. Unknown members are ignored."""
    try:
        return _read(message)
    except (_InvalidMember, GridRefused) as error:
        run_id = message.get("run_id")
        known = run_id if isinstance(run_id, str) and is_run_id(run_id) else None
        reason = error.message if isinstance(error, GridRefused) else str(error)
        raise InvalidJob(f"the job is not valid: {reason}", run_id=known) from error


def _read(message: Mapping[str, Any]) -> ProgramJob:
    _take(message, "v", lambda value: value == 1 and type(value) is int, "1")
    inputs = _inputs(_take(message, "inputs", lambda value: isinstance(value, dict), "an object"))
    args = _take(message, "args", _is_texts, "an array of strings")
    ask = check_ask(
        JobAsk(
            job_id=message.get("job_id", ""),
            group=message.get("group", ""),
            client_id=message.get("client_id", ""),
            exec_name=message.get("exec_name", ""),
            args=tuple(args),
            timeout_sec=message.get("timeout_sec"),
        )
    )
    if message.get("run_id") != ask.run_id or message["job_id"] != ask.job_id:
        raise _InvalidMember("run_id is not that of the job")
    return ProgramJob(
        run_id=ask.run_id,
        job_id=ask.job_id,
        group=ask.group,
        exec_name=ask.exec_name,
        client_id=ask.client_id,
        args=ask.args,
        timeout_sec=ask.timeout_sec,
        inputs=inputs,
        submitted_at=float(_take(message, "submitted_at", _is_instant, "a number of unix seconds")),
        fingerprint=_take(message, "fingerprint", _is_sha256, "64 hex digits"),
        tenant_id=_text_or_none(message, "tenant_id"),
        api_key_id=_text_or_none(message, "api_key_id"),
        retry_of=_text_or_none(message, "retry_of"),
        revision=_hint(message, "revision"),
        max_attempts=_hint(message, "max_attempts"),
        not_before=_due(message),
        schedule=_object_or_none(message, "schedule"),
        retry=_object_or_none(message, "retry"),
        tags=tuple(_take(message, "tags", _is_texts, "an array of strings")) if "tags" in message else (),
    )


def _object_or_none(message: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    if message.get(name) is None:
        return None
    found: Mapping[str, Any] = _take(message, name, lambda value: isinstance(value, dict), "an object")
    return found


def _due(message: Mapping[str, Any]) -> float | None:
    if message.get("not_before") is None:
        return None
    return float(_take(message, "not_before", _is_instant, "a number of unix seconds"))


def _inputs(members: Mapping[str, Any]) -> Inputs:
    mode = members.get("mode")
    if mode == "inline":
        files = _take(members, "files", lambda value: isinstance(value, dict), "an object")
        check_file_names(files)
        for text in files.values():
            _check_base64(text)
        return InlineInputs(files)
    if mode == "object":
        listed = _take(members, "files", lambda value: isinstance(value, list), "an array")
        files = tuple(map(_listed, listed))
        check_file_names(each.name for each in files)
        return ObjectInputs(
            object=_take(members, "object", _is_object_name, "the name of an object"),
            size=_take(members, "size", _is_count, "a number of bytes"),
            sha256=_take(members, "sha256", _is_sha256, "64 hex digits"),
            files=files,
        )
    raise _InvalidMember("inputs.mode must be inline or object")


def _listed(item: Any) -> InputFile:
    if isinstance(item, list) and len(item) == 3 and isinstance(item[0], str):
        name, size, sha256 = item
        if _is_count(size) and _is_sha256(sha256):
            return InputFile(name, size, sha256)
    raise _InvalidMember("inputs.files must list name, size and sha256 of each")


def _check_base64(text: Any) -> None:
    try:
        decode_inline(text)
    except (TypeError, ValueError):
        raise _InvalidMember("inputs.files must hold strict base64") from None


def _take(members: Mapping[str, Any], name: str, check: Callable[[Any], bool], expected: str) -> Any:
    value = members.get(name)
    if value is None or not check(value):
        raise _InvalidMember(f"{name} {'is missing' if value is None else f'must be {expected}'}")
    return value


def _text_or_none(members: Mapping[str, Any], name: str) -> str | None:
    value = members.get(name)
    if value is None or (isinstance(value, str) and 0 < len(value) <= _TEXT_LENGTH_MAX):
        return value
    raise _InvalidMember(f"{name} must be text")


def _hint(members: Mapping[str, Any], name: str) -> int | None:
    """Return a hint, or None if it is missing or invalid: the claim then reads the record."""
    value = members.get(name)
    return int(value) if value and _is_count(value) else None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_object_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _OBJECT_LENGTH_MAX and value.isprintable()


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_instant(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
