"""The message that tells a worker to execute a priced run (contract 12.1). It never contains the run's inputs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Never

from pyoco_server.core.names import is_run_id, is_tag
from pyoco_server.core.priced.constants import MESSAGE_SCHEMA_VERSION

__all__ = ["MESSAGE_BYTES_MAX", "BadMessage", "PackMessage", "decode", "encode"]

#: Our messages have some 200 bytes; a foreign one may have a few more members.
MESSAGE_BYTES_MAX = 65_536
#: The maximum length of a tenant id, which is the longest of the texts.
_TEXT_LENGTH_MAX = 128


class BadMessage(ValueError):
    """A message that no worker can process. It is not acknowledged, and becomes a dead letter (PRICED-106)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackMessage:
    """A reference to a run, in the queue. The row is the truth: a message that disagrees with it is a bad message."""

    run_id: str
    tenant_id: str
    pack_type: str
    #: When it was sent, as ISO text: distinguishes a deliberate second sending from a repeated one.
    enqueued_at: str


def encode(message: PackMessage) -> bytes:
    """Encode exactly five members (PRICED-105)."""
    document = asdict(message) | {"schema_version": MESSAGE_SCHEMA_VERSION}
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def decode(data: bytes) -> PackMessage:
    """Decode a message. Unknown members are ignored. O(size), within 64 KiB. Raises BadMessage, which quotes
    nothing."""
    message = _object(data)
    if message.get("schema_version") != MESSAGE_SCHEMA_VERSION:
        raise BadMessage(f"schema_version is not {MESSAGE_SCHEMA_VERSION!r}")
    run_id, tenant_id = _text(message, "run_id"), _text(message, "tenant_id")
    if not is_run_id(run_id):
        raise BadMessage("run_id is not a UUID")
    if not is_tag(tenant_id):
        raise BadMessage("tenant_id is not the id of a tenant")
    return PackMessage(
        run_id=run_id,
        tenant_id=tenant_id,
        pack_type=_text(message, "pack_type"),
        enqueued_at=_text(message, "enqueued_at"),
    )


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MESSAGE_BYTES_MAX:
        raise BadMessage(f"the message has {len(data)} bytes, more than {MESSAGE_BYTES_MAX}")
    try:
        message = json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadMessage("the message is not JSON") from error
    if not isinstance(message, dict):
        raise BadMessage("the message is not a JSON object")
    return message


def _text(message: dict[str, Any], name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str) or not value:
        raise BadMessage(f"{name} is missing or not text")
    if len(value) > _TEXT_LENGTH_MAX or not value.isprintable():
        raise BadMessage(f"{name} is too long or not printable")
    return value


def _refuse_constant(_: str) -> Never:
    raise ValueError("NaN and the infinities are no JSON")
