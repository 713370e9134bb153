"""Response types for wheels. Plain dicts, as in `results`."""

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
    """An upload or deletion, with its time, source and actor."""

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
    """The wheel is deleted."""

    name: str
    deleted: Literal[True]


class WheelDownloaded(TypedDict):
    """A wheel that was saved to a local file. Its size and sha256 match the registry."""

    name: str
    path: str
    size_bytes: int
    sha256_hex: str
