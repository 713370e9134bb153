"""One watch of a run: its snapshots, each once, and its heartbeats. No socket; the clock is passed in."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pyoco_server.client import calls
from pyoco_server.client.calls import Call
from pyoco_server.client.events import ServerEvent
from pyoco_server.client.faults import AnswerDamaged
from pyoco_server.client.resuming import Resuming
from pyoco_server.client.run_results import RunWatchEvent
from pyoco_server.core.states import TERMINAL

__all__ = ["Watching"]

_EVENTS = frozenset({"snapshot", "heartbeat"})
#: The number of remembered event ids. A server that starts over begins with the newest, so a few would be enough.
_SEEN_MAX = 100


@dataclass(kw_only=True)
class Watching(Resuming[RunWatchEvent]):
    """The state of one watch."""

    include: Sequence[str] | None = None
    since: float | None = None

    _last_id: str | None = field(default=None, init=False)
    _seen_ids: deque[str] = field(default_factory=lambda: deque(maxlen=_SEEN_MAX), init=False)

    def _request(self, timeout_sec: float | None) -> Call[None]:
        include = list(self.include) if self.include else None
        query = {"include": include, "since": self.since, "timeout_sec": timeout_sec}
        return calls.watch_run(self.run_id, query, self._last_id)

    def _known_events(self) -> frozenset[str]:
        return _EVENTS

    def _is_news(self, event: ServerEvent) -> bool:
        return event.name == "snapshot"

    def _read(self, event: ServerEvent) -> RunWatchEvent | None:
        document = _document(event.data)
        self._last_id = event.id if event.id is not None else self._last_id
        self._is_over = document["snapshot"]["status"] in TERMINAL
        if self._is_news(event):
            if event.id in self._seen_ids and not self._is_over:
                return None  # repeated after the server started over; a terminal state is always passed on
            if event.id is not None:
                self._seen_ids.append(event.id)
        return cast(RunWatchEvent, {"event": event.name, **document})


def _document(data: str) -> dict[str, Any]:
    """Return the JSON document of an event (FLOW-121). Raises AnswerDamaged."""
    try:
        document = json.loads(data)
    except ValueError as error:
        raise AnswerDamaged("an event is not JSON") from error
    try:
        is_complete = isinstance(document["snapshot"]["status"], str) and isinstance(document["run_id"], str)
    except (TypeError, KeyError, IndexError) as error:
        raise AnswerDamaged("an event does not contain a run") from error
    if not is_complete:
        raise AnswerDamaged("an event does not contain a run")
    return cast(dict[str, Any], document)
