"""A message that arrived while a backup was made, encoded as one line of text."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from dataclasses import dataclass, field

from pyoco_server.errors import BackupFailed

__all__ = ["LateChange", "encode_change", "read_changes"]


@dataclass(frozen=True)
class LateChange:
    """A message that arrived while a backup was made."""

    #: Its sequence in the stream; 0: not known.
    sequence: int
    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def encode_change(change: LateChange) -> bytes:
    """Encode as one line, including its line break."""
    document = {
        "seq": change.sequence,
        "subject": change.subject,
        "headers": dict(change.headers),
        "data": base64.b64encode(change.data).decode(),
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


async def read_changes(chunks: AsyncIterable[bytes]) -> AsyncGenerator[LateChange, None]:
    """Decode the lines of a file that arrives in arbitrary chunks. Memory: one line. Raises BackupFailed."""
    rest: list[bytes] = []
    async for chunk in chunks:
        *ends, last = chunk.split(b"\n")
        for end in ends:
            yield _decode(b"".join([*rest, end]))
            rest = []
        rest.append(last)
    if any(rest):
        raise BackupFailed("the last change in the backup has no end")


def _decode(line: bytes) -> LateChange:
    try:
        document = json.loads(line)
        return LateChange(
            sequence=int(document["seq"]),
            subject=str(document["subject"]),
            data=base64.b64decode(document["data"], validate=True),
            headers={str(name): str(value) for name, value in document["headers"].items()},
        )
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise BackupFailed(f"a change in the backup cannot be read: {error}") from error
