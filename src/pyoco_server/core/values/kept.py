"""What the record of a run says about its values: where each is, and how large.

Most outputs are small and JSON, so they are in the task record only. Every other output has an entry
here, as has the result:

    {"task": NAME}                                      the result is the output of this task
    {"content_type", "bytes", "sha256", "text"}         the encoded value itself, JSON
    {"content_type", "bytes", "sha256", "base64"}       the same for a value that is not JSON
    {"content_type", "bytes", "sha256", "part", "offset", "preview"?}
                                                        a slice of an object in the store of outputs
    {"error": NUMBER, "detail"}                         the value could not be kept, and why

An object contains many values, one after another, so that a thousand small ones do not become a thousand objects. Its
name follows from run, attempt and part, and is not stored.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyoco_server.core.values.encode import JSON_TYPE, to_bytes

__all__ = [
    "PREVIEW_LENGTH_MAX",
    "InRecord",
    "InStore",
    "Kept",
    "NotKept",
    "PartFile",
    "Where",
    "in_record",
    "object_name",
    "read_entry",
    "run_id_of_object",
]

#: RES-3
PREVIEW_LENGTH_MAX = 1024

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class PartFile(Protocol):
    """The encoded values of one run, before they are in the store."""

    def read(self, offset: int, length: int) -> bytes:
        """Return up to this many bytes. Raises OSError."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Kept:
    """The values that one attempt has left, as its executor reports them."""

    #: An entry as above. None: the attempt has no result.
    result: Mapping[str, Any] | None = None
    #: Entries by task.
    outputs: Mapping[str, Mapping[str, Any]] | None = None
    #: The sizes of the parts in `file`, which come one after another.
    parts: tuple[int, ...] = ()
    file: PartFile | None = None

    def stored(self) -> dict[str, Any]:
        """Return the form for the record."""
        result = {"result": dict(self.result)} if self.result is not None else {}
        return result | ({"outputs": dict(self.outputs)} if self.outputs else {})


def object_name(run_id: str, attempt_id: str, part: int) -> str:
    return f"{run_id}.{attempt_id}.{part}"


def run_id_of_object(name: str) -> tuple[str, str]:
    """Return the run and the attempt that an object belongs to; empty texts for a foreign name."""
    run_id, _, rest = name.partition(".")
    attempt_id, _, _ = rest.partition(".")
    return run_id, attempt_id


@dataclass(frozen=True)
class InRecord:
    """A value that is in the record."""

    content_type: str
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def preview(self) -> str:
        head = self.data[: 4 * PREVIEW_LENGTH_MAX]
        text = head.decode("utf-8", "replace") if self.content_type == JSON_TYPE else repr(head)
        return text[:PREVIEW_LENGTH_MAX]


@dataclass(frozen=True)
class InStore:
    """A value that is a slice of an object."""

    content_type: str
    size: int
    sha256: str
    part: int
    offset: int
    preview: str = ""


@dataclass(frozen=True)
class NotKept:
    """A value that could not be kept: the number of the error, and what exactly was wrong."""

    number: int
    detail: str


Where = InRecord | InStore | NotKept


def in_record(value: Any) -> InRecord:
    """Return the stored form of an output that is complete in its task record."""
    return InRecord(JSON_TYPE, to_bytes(_encode(value)))


def read_entry(entry: Any) -> Where | None:  # noqa: PLR0911  (one for each form)
    """Decode an entry. None: it is of a form that this version does not know, or a foreign client wrote it."""
    if not isinstance(entry, dict):
        return None
    number, detail = entry.get("error"), entry.get("detail")
    if type(number) is int and isinstance(detail, str):
        return NotKept(number, detail)
    content_type, size, sha256 = (entry.get(name) for name in ("content_type", "bytes", "sha256"))
    if not isinstance(content_type, str) or type(size) is not int or not isinstance(sha256, str):
        return None
    if not content_type.isascii() or not content_type.isprintable() or not _is_sha256(sha256):
        return None
    if isinstance(text := entry.get("text"), str):
        return InRecord(content_type, to_bytes(text))
    if isinstance(text := entry.get("base64"), str):
        return _from_base64(content_type, text)
    part, offset, preview = (entry.get(name, "") for name in ("part", "offset", "preview"))
    if type(part) is int and type(offset) is int and min(part, offset, size) >= 0 and isinstance(preview, str):
        return InStore(content_type, size, sha256, part, offset, preview[:PREVIEW_LENGTH_MAX])
    return None


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def _from_base64(content_type: str, text: str) -> InRecord | None:
    try:
        return InRecord(content_type, base64.b64decode(text, validate=True))
    except ValueError:
        return None
