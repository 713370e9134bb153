"""A worker for use inside a Python program (section 18.3 of the contract)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.names import check_worker_names
from pyoco_server.core.run import Owner
from pyoco_server.core.worker_description import LaneReport, LastEnd, WorkerDescription
from pyoco_server.core.worker_record import FLOWS, WorkerRecord
from pyoco_server.executors.port import Executor
from pyoco_server.logs import get_logger
from pyoco_server.loops.delivery_processor import DeliveryProcessor
from pyoco_server.loops.flow_lane import flow_members
from pyoco_server.loops.pulse import Pulse
from pyoco_server.loops.registration import Registration
from pyoco_server.loops.wheel_sync import WheelSync
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Delivery, Intake, Reply
from pyoco_server.wiring import backend as wiring
from pyoco_server.wiring.logs import open_log_sender

if TYPE_CHECKING:
    from pyoco.core.models import Flow

__all__ = ["PyocoNatsWorker"]

log = get_logger(__name__)


class PyocoNatsWorker:
    """Takes one job at a time and runs it in a thread of this process. Create it with `connect`.

    For concurrent runs, hard cancel and tasks that may crash, use the `pyoco-worker` command: it runs flows in separate
    processes.
    """

    def __init__(
        self,
        stack: contextlib.AsyncExitStack,
        backend: Backend,
        description: WorkerDescription,
        intake: Intake,
        executor: Executor,
        wheels: WheelSync | None,
    ) -> None:
        self._stack, self._backend, self._description, self._intake, self._wheels = (
            stack,
            backend,
            description,
            intake,
            wheels,
        )
        self._last_end: LastEnd | None = None
        self._registration = Registration(backend, self._describe)
        self._pulse = Pulse()
        self._processor = DeliveryProcessor(
            backend, executor, description.me, self._pulse, intake, self._registration.touch
        )
        self._closed = False

    @classmethod
    async def connect(
        cls,
        config: NatsBackendConfig | None = None,
        flow_resolver: Callable[[str], Flow] | None = None,
        worker_id: str = "worker",
        tags: list[str] | None = None,
    ) -> PyocoNatsWorker:
        """Connect, create missing resources, and register. Raises ValueError for bad names, Unavailable without NATS.

        With `config.wheel_sync_enabled` the wheels of the registry are installed first and added to `sys.path`.
        """
        config = config or NatsBackendConfig.from_env()
        tags = list(dict.fromkeys(tags or [config.default_tag]))
        check_worker_names(worker_id, tags)
        async with contextlib.AsyncExitStack() as stack:
            backend = await stack.enter_async_context(wiring.open_backend(config, f"pyoco-worker {worker_id}"))
            lines = await stack.enter_async_context(open_log_sender(backend))
            executor = wiring.thread_executor(config, flow_resolver, lines)
            stack.push_async_callback(executor.stop)
            wheels = await stack.enter_async_context(wiring.open_wheel_sync(backend, executor, tags))
            if wheels is not None:
                await wheels.first_sync()
            intake = await backend.queue.open_intake(tags, _not_expected)
            me = Owner(worker_id, backend.new_id())
            totals = None if lines is None else lines.totals
            description = WorkerDescription(me=me, tags=tuple(tags), versions=wiring.versions(), logs=totals)
            worker = cls(stack.pop_all(), backend, description, intake, executor, wheels)
        await worker._registration.write()
        await worker._registration.start()
        await worker._pulse.start()
        return worker

    def _describe(self) -> WorkerRecord:
        now = self._backend.clock()
        flows = LaneReport(
            lane=FLOWS,
            slots=1,
            running=self._processor.running,
            last_end=self._last_end,
            members=flow_members(now, self._intake, self._wheels),
        )
        return self._description.record((flows,), now)

    async def run_once(self, timeout: float = 1.0) -> str | None:
        """Handle at most one job. Returns its run id, or None if no job arrived within `timeout` seconds.

        Errors of a job are handled by the disposition table and not raised; NATS errors while polling are.
        """
        if timeout < 0:
            raise ValueError("timeout must be 0 or more")
        if self._closed:
            raise RuntimeError("the worker is closed")
        if self._wheels is not None:
            await self._wheels.sync_if_due()  # FLOW-229, FLOW-364: before polling, so never while a run executes
        delivery = await self._intake.take(timeout)
        if delivery is None:
            return None
        self._registration.touch()
        worked = await self._processor.work(delivery, lambda: None)
        if worked.ended is not None:
            self._last_end = LastEnd(worked.ended, time.monotonic())
        await self._registration.write()
        return worked.run_id

    async def close(self, reason: str = "close") -> None:
        """Record the orderly stop and close the connection. Can be called twice."""
        if self._closed:
            return
        self._closed = True
        await self._intake.close()
        await self._pulse.stop()
        await self._registration.retire(reason)
        await self._stack.aclose()


def _not_expected(delivery: Delivery) -> None:
    """Called for unexpected deliveries only; `take` receives every delivery itself."""
    log.error("unexpected delivery; it will be redelivered", tag=delivery.tag, reply=Reply.NOTHING.value)
