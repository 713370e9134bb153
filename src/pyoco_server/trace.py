"""A trace backend for programs that run the engine themselves and store its progress in the runs' bucket (18.5)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from pyoco.core.models import RunContext
from pyoco.trace.backend import TraceBackend

from pyoco_server.core.flow_moves import beat
from pyoco_server.core.outcome import Progress
from pyoco_server.core.snapshot import encode_fitting, read_snapshot
from pyoco_server.executors.flow.records import plain_records
from pyoco_server.logs import get_logger

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

__all__ = ["NatsKvTraceBackend"]

log = get_logger(__name__)

_SNAPSHOT_BYTES_MAX = 262_144


class NatsKvTraceBackend(TraceBackend):  # type: ignore[misc]  # the engine is not typed
    """Mirrors a run's progress into its snapshot, best effort.

    The engine's threads call its callbacks. They never raise and never block: an exception there counts as a failure of
    the task and may even repeat it (ENG-16). They only signal a change; the change itself is read from the run context
    on the event loop, since a callback comes before the engine sets the new state (ENG-14). The snapshot must exist; a
    terminal one is not changed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, kv: KeyValue, run_ctx: RunContext) -> None:
        self._loop, self._kv, self._context = loop, kv, run_ctx
        self._flushing: asyncio.Task[None] | None = None
        self._again = False

    def on_flow_start(self, flow_name: str, run_id: str | None = None) -> None:
        self._changed()

    def on_flow_end(self, flow_name: str) -> None:
        self._changed()

    def on_node_start(self, node_name: str) -> None:
        self._changed()

    def on_node_end(self, node_name: str, duration_ms: float) -> None:
        self._changed()

    def on_node_error(self, node_name: str, error: Exception) -> None:
        self._changed()

    def _changed(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._flush)
        except RuntimeError:  # the loop is closed
            log.debug("progress not stored: event loop is closed", run_id=self._context.run_id)

    def _flush(self) -> None:
        if self._flushing is None or self._flushing.done():
            self._flushing = self._loop.create_task(self._write())
        else:
            self._again = True

    async def _write(self) -> None:
        # Give the engine time to set the state that the callback announced; further changes are merged.
        await asyncio.sleep(0.01)
        try:
            await self._store()
        except Exception as error:  # noqa: BLE001  (best effort: the run continues after any error)
            log.warning("progress not stored", run_id=self._context.run_id, error=error)
        if self._again:
            self._again = False
            self._flushing = self._loop.create_task(self._write())

    async def _store(self) -> None:
        try:
            entry = await self._kv.get(self._context.run_id)
            run = read_snapshot(entry.value or b"")
            if run.is_terminal or entry.revision is None:
                return
            tasks = {name: str(state.value) for name, state in list(self._context.tasks.items())}
            beaten = beat(run, Progress(tasks, plain_records(self._records())), time.time())
            await self._kv.update(run.run_id, encode_fitting(beaten, _SNAPSHOT_BYTES_MAX), last=entry.revision)
        except KeyWrongLastSequenceError:
            self._again = True  # a concurrent write: retry on top of it
        except KeyNotFoundError as error:
            log.debug("progress not stored: run does not exist", run_id=self._context.run_id, error=error)

    def _records(self) -> dict[str, Any]:
        records: dict[str, Any] = self._context.serialize_task_records()
        return records
