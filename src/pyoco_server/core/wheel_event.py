"""An event of the wheel registry's history: one per change (section 12.2)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from pyoco_server.core.run import Caller
from pyoco_server.errors import Corrupt

__all__ = ["WheelAction", "WheelEvent", "WheelSource", "encode_wheel_event", "read_wheel_event"]

#: Longer texts are cut: an event describes a change and must not serve as storage.
_TEXT_LENGTH_MAX = 512
_TAGS_MAX = 100


class WheelAction(StrEnum):
    UPLOAD = "upload"
    DELETE = "delete"


@dataclass(frozen=True)
class WheelSource:
    """FLOW-224: where the change came from."""

    via: str = "http"
    remote_addr: str | None = None
    user_agent: str | None = None


@dataclass(frozen=True, kw_only=True)
class WheelEvent:
    """FLOW-223"""

    event_id: str
    occurred_at: float
    action: WheelAction
    wheel_name: str
    tags: tuple[str, ...]
    source: WheelSource
    #: FLOW-225: tenant and key id; never the key itself.
    actor: Caller
    size_bytes: int | None = None
    sha256_hex: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the stored and public form."""
        return {
            "event_id": self.event_id,
            "occurred_at": self.occurred_at,
            "action": self.action.value,
            "wheel_name": self.wheel_name,
            "tags": list(self.tags),
            "source": asdict(self.source),
            "actor": {"tenant_id": self.actor.tenant_id, "api_key_id": self.actor.api_key_id},
            "size_bytes": self.size_bytes,
            "sha256_hex": self.sha256_hex,
        }


def encode_wheel_event(event: WheelEvent) -> bytes:
    return json.dumps(event.document(), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def read_wheel_event(data: bytes) -> WheelEvent:
    """Decode a stored event. Raises Corrupt unless it names the event id, action, wheel and time.

    Any client may have written it: every other invalid member counts as missing, and long text is cut. O(size).
    """
    try:
        message = json.loads(data)
        action = WheelAction(message["action"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"not an event of the wheel history: {error}") from error
    event_id, wheel_name = _text(message.get("event_id")), _text(message.get("wheel_name"))
    occurred_at = message.get("occurred_at")
    # Bounded, because JSON has numbers that no float can hold. The comparison also rejects NaN.
    if type(occurred_at) not in {int, float} or not 0 <= occurred_at < 1e12 or event_id is None or wheel_name is None:
        raise Corrupt("not an event of the wheel history: it has no id, time or wheel")
    source, actor = _mapping(message.get("source")), _mapping(message.get("actor"))
    size_bytes, tags = message.get("size_bytes"), message.get("tags")
    return WheelEvent(
        event_id=event_id,
        occurred_at=float(occurred_at),
        action=action,
        wheel_name=wheel_name,
        tags=tuple(tag for each in tags[:_TAGS_MAX] if (tag := _text(each))) if isinstance(tags, list) else (),
        source=WheelSource(
            _text(source.get("via")) or "unknown", _text(source.get("remote_addr")), _text(source.get("user_agent"))
        ),
        actor=Caller(_text(actor.get("tenant_id")), _text(actor.get("api_key_id"))),
        size_bytes=size_bytes if type(size_bytes) is int and 0 <= size_bytes < 2**63 else None,
        sha256_hex=_text(message.get("sha256_hex")),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    """Cut the text to the limit. A lone surrogate, which JSON can spell and UTF-8 cannot hold, becomes a question
    mark."""
    if not isinstance(value, str) or not value:
        return None
    return value[:_TEXT_LENGTH_MAX].encode("utf-8", "replace").decode()
