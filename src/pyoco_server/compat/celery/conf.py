"""`app.conf`: the settings of Celery that have a meaning here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyoco_server.compat.celery.refusals import CONF, refusal

__all__ = ["Conf"]

_KNOWN = ("beat_schedule", "task_default_queue", "timezone")


class Conf:
    """Settings by attribute. Every other one is refused, when it is set and when it is read."""

    beat_schedule: Mapping[str, Mapping[str, Any]]
    task_default_queue: str | None
    timezone: str

    def __init__(self) -> None:
        self.beat_schedule, self.task_default_queue, self.timezone = {}, None, "UTC"

    def update(self, other: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        for name, value in {**(other or {}), **settings}.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _KNOWN:
            raise refusal(name, CONF, "conf")
        if name == "timezone":
            value = _zone(value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refusal(name, CONF, "conf")


def _zone(value: Any) -> str:
    try:
        return ZoneInfo(str(value)).key
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"timezone {value!r} is not an IANA name") from error
