"""Runs that have printed something, without a worker."""

from __future__ import annotations

from pyoco_server.core.outcome import Completed
from pyoco_server.core.run_log.attempt_log import AttemptLog, Limits
from pyoco_server.core.run_log.line import Stream
from pyoco_server.ports.run_logs.port import RunLogs
from support.gateways import Gateway, ended, submit

__all__ = ["Printer", "printed_run"]


class Printer:
    """Stores lines of an attempt, as a worker does."""

    def __init__(self, logs: RunLogs | None, run_id: str, attempt: int = 1) -> None:
        assert logs is not None
        self._logs, self._run_id, self._attempt = logs, run_id, attempt
        self.log, self.number = AttemptLog(Limits(head_bytes=200, tail_bytes=4096)), 0

    def print(self, *texts: str, task: str | None = "load", stream: Stream = Stream.STDOUT, ts: float = 100.0) -> None:
        for text in texts:
            self.log.feed(stream, task, f"{text}\n".encode(), ts)

    async def store(self, *, is_over: bool = False) -> None:
        if is_over:
            self.log.finish(200.0)
        while (shipment := self.log.take(150.0)) is not None:
            self.number = await self._logs.append(self._run_id, self._attempt, shipment.payload, self.number)


async def printed_run(gateway: Gateway, *texts: str) -> str:
    """Return the id of a run that has printed these lines in its task `load`, and ended."""
    run_id = await submit(gateway)
    printer = Printer(gateway.backend.logs, run_id)
    printer.print(*texts)
    await printer.store(is_over=True)
    await ended(gateway, run_id, Completed())
    return run_id
