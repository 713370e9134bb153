"""A stack of priced runs with watched ports, and workers on it whose packs behave as told."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyoco_server.actions.priced.patience import RetryLimit
from pyoco_server.config.packs import PackConfig
from pyoco_server.core.packs import PackSpec
from pyoco_server.core.priced.result_key import envelope_key
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Money, Stage, Status
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.executors.packs.pool import PackHosts
from pyoco_server.loops.priced import fitness as fitness_module
from pyoco_server.loops.priced.fetching import Files
from pyoco_server.loops.priced.pack_lane import PackLane
from pyoco_server.loops.priced.staging import StagingTries, prefix_of
from pyoco_server.ports.inputs.scratch import Scratch
from pyoco_server.ports.priced import Priced
from support.priced import naughty_packs
from support.priced.stacks import SQLITE, Stack, an_ask, open_stack
from support.waiting import eventually

__all__ = [
    "CREDIT",
    "FEE",
    "FOR_EVER",
    "LEASE_SECONDS",
    "Scene",
    "Watched",
    "check_failed",
    "check_refunded",
    "is_gone",
    "naughty_hosts",
    "open_scene",
    "pack_processes",
    "spec",
]

TESTS = Path(__file__).parents[2]
CREDIT = 10_000_000
#: Of a run that reserves 250_000.
FEE = 5_000
FOR_EVER = 10**9
#: Longer than any machine stands still. Who wants a lease to end moves the clock.
LEASE_SECONDS = 60
QUICK = StagingTries(seconds=60.0, pauses=(0.01, 0.01))
BRIEFLY = RetryLimit(total=timedelta(milliseconds=300), first_pause=timedelta(milliseconds=20))


class Watched:
    """A port that records its calls, and can be made unavailable."""

    def __init__(self, port: object) -> None:
        self._port = port
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        #: The names of methods that do not answer, and how often; "*" is all of them.
        self.down: dict[str, int] = {}
        #: Delays are not waited for.
        self.is_hasty = False

    def asked(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)
        if not inspect.iscoroutinefunction(real):
            return real

        async def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            left = self.down.get(name, self.down.get("*", 0))
            if left:
                if name in self.down:
                    self.down[name] -= 1
                raise DependencyUnavailable(f"injected: {name} is not answered")
            if name == "nack" and self.is_hasty:
                arguments = (arguments[0], 0)
            return await real(*arguments)

        return call


class Scene:
    """A stack with watched ports, and workers on it."""

    def __init__(self, stack: Stack, tmp_path: Path) -> None:
        priced = stack.priced
        self.ledger, self.queue, self.results, self.inputs = (
            Watched(port) for port in (priced.ledger, priced.queue, priced.results, priced.inputs)
        )
        watched: Any = {"ledger": self.ledger, "queue": self.queue, "results": self.results, "inputs": self.inputs}
        self.priced: Priced = replace(priced, **watched)
        self.stack, self._tmp_path = stack, tmp_path
        self.files = Files(Scratch(tmp_path / "pack-files"), QUICK)

    def begun(self, name: str = "begun") -> Path:
        return self._tmp_path / name

    async def submit(self, question: str = "Shall we?", **more: Any) -> PricedRun:
        return await self.stack.submitted(an_ask(inputs={"question": question}, **more))

    async def row(self, run: PricedRun) -> PricedRun:
        return await self.stack.row(run.run_id)

    async def ended(self, run: PricedRun, seconds: float = 40.0) -> PricedRun:
        async def has_ended() -> bool:
            return (await self.row(run)).has_ended

        await eventually(has_ended, seconds)
        return await self.row(run)

    async def settled(self) -> None:
        """Nothing is queued or in hand."""

        async def is_empty() -> bool:
            return await self.stack.priced.queue.depth() == (0, 0)

        await eventually(is_empty)

    async def envelope(self, run: PricedRun) -> dict[str, Any] | None:
        found = await self.stack.priced.results.get(envelope_key(prefix_of(run)))
        return None if found is None else json.loads(found[0])

    @contextlib.asynccontextmanager
    async def worker(self, slots: int = 1, *packs: str, drain_seconds: float = 0.5) -> AsyncIterator[PackLane]:
        executor = naughty_hosts(slots)
        worker = PackLane(self.priced, executor, slots, packs, files=self.files, tries=QUICK, patience=BRIEFLY)
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop(drain_seconds)


def naughty_hosts(slots: int, memory_bytes_max: int = 0, **own: str) -> PackHosts:
    """All naughty packs in shared processes; and with processes of their own, `own` by name, each with its place."""
    shared = [spec(name, has_own_process=False) for name in naughty_packs.EXECUTORS]
    others = [spec(name, executor=place) for name, place in own.items()]
    return PackHosts(slots, memory_bytes_max, [*shared, *others], PackConfig(), naughty_packs.LOADER)


def spec(name: str, **more: Any) -> PackSpec:
    return PackSpec(name=name, inputs=lambda _: (), **more)


@contextlib.asynccontextmanager
async def open_scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lease_seconds: int = LEASE_SECONDS,
    heartbeat_seconds: int = 1,
) -> AsyncIterator[Scene]:
    """Leases are renewed every second. Whatever was done in it, the money is right in the end."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(fitness_module, "_FIRST_PAUSE_SECONDS", 0.05)
    times: dict[str, Any] = {"priced_lease_ttl_sec": lease_seconds, "priced_heartbeat_sec": heartbeat_seconds}
    async with open_stack(SQLITE, request, **times) as stack:
        await stack.credit(CREDIT)
        yield Scene(stack, tmp_path)
        await stack.check_money()


def check_failed(run: PricedRun, reason: str, detail: str | None) -> None:
    """PRICED-13, PRICED-118: the minimum fee, and no pointer."""
    assert (run.status, run.money, run.stage) == (Status.FAILED, Money.SETTLED, Stage.COMMITTED)
    assert (run.reason_code, run.error_detail) == (reason, detail)
    assert run.actual_cost_usd_micros == FEE
    assert run.result is None


def check_refunded(run: PricedRun, detail: str) -> None:
    """SAFE-3: it was started, failed by the operator's fault, and costs nothing."""
    assert (run.status, run.money, run.stage) == (Status.FAILED, Money.REFUNDED, Stage.COMMITTED)
    assert (run.reason_code, run.error_detail) == ("PACK_UNAVAILABLE", detail)
    assert run.actual_cost_usd_micros == 0
    assert run.started_at is not None
    assert run.result is None


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pack_processes() -> list[psutil.Process]:
    """Of this process, and no others: its servers are its children, too."""
    return [each for each in psutil.Process().children() if _is_pack(each)]


def _is_pack(process: psutil.Process) -> bool:
    try:
        return "pyoco_server.executors.packs.child" in process.cmdline()
    except psutil.Error:  # gone, or going
        return False
