"""What the gateway says of wheels. Plain dicts, as in `results`."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

__all__ = [
    "WheelArtifact",
    "WheelDeleted",
    "WheelDownloaded",
    "WheelHistoryEvent",
]


class WheelArtifact(TypedDict):
    """A registered wheel."""

    name: str
    size_bytes: int
    bucket: str
    nuid: str
    modified: float
    sha256_hex: NotRequired[str | None]
    tags: list[str]


class WheelHistoryEvent(TypedDict):
    """One upload or deletion: when, from where, by whom."""

    event_id: str
    occurred_at: float
    action: Literal["upload", "delete"]
    wheel_name: str
    tags: list[str]
    source: dict[str, str | None]
    actor: dict[str, str | None]
    size_bytes: NotRequired[int | None]
    sha256_hex: NotRequired[str | None]


class WheelDeleted(TypedDict):
    """The wheel is gone."""

    name: str
    deleted: Literal[True]


class WheelDownloaded(TypedDict):
    """Where the wheel lies now. Its bytes are those of the registry: size and sha256 were compared."""

    name: str
    path: str
    size_bytes: int
    sha256_hex: str
