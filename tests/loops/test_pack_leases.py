"""The worker's lane of priced runs: its leases, outages of its stores, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.packs import PACKS
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Stage, Status
from pyoco_server.errors import UsageError
from pyoco_server.executors.packs.pool import PackHosts
from pyoco_server.executors.packs.port import Call, Execution
from pyoco_server.loops.priced import fitness as fitness_module
from pyoco_server.loops.priced import lease as lease_module
from pyoco_server.loops.priced.lease import Lease
from pyoco_server.loops.priced.pack_lane import PackLane
from pyoco_server.loops.priced.reaper import Reaper
from pyoco_server.loops.pulse import Pulse
from pyoco_server.ports.pack_queue.port import Delivery
from support.priced.pack_scenes import (
    CREDIT,
    FEE,
    FOR_EVER,
    LEASE_SECONDS,
    Scene,
    Watched,
    check_failed,
    is_gone,
    open_scene,
    pack_processes,
)
from support.priced.stacks import an_ask
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("warm_hosts")


@pytest.fixture
async def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    async with open_scene(request, tmp_path, monkeypatch) as scene:
        yield scene


class Quick(Protocol):
    """A scene with leases of so many seconds, renewed three times as often."""

    def __call__(self, lease_seconds: float) -> contextlib.AbstractAsyncContextManager[Scene]: ...


@pytest.fixture
def quick(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quick:
    def of(lease_seconds: float) -> contextlib.AbstractAsyncContextManager[Scene]:
        folder = tmp_path / f"{lease_seconds}"
        folder.mkdir()
        return open_scene(request, folder, monkeypatch, int(lease_seconds), int(lease_seconds / 3))

    return of


@contextlib.asynccontextmanager
async def lease_of(scene: Scene, run: PricedRun, beat_seconds: float) -> AsyncIterator[Lease]:
    """Settings take whole seconds, and a test does not wait that long."""
    pulse = Pulse()
    lease = Lease(pulse, scene.priced, run, Delivery(b"", 1, None), time.monotonic())
    lease.rhythm = replace(lease.rhythm, beat=beat_seconds)
    await pulse.start()
    try:
        async with lease:
            yield lease
    finally:
        await pulse.stop()


class TestALease:
    @pytest.mark.steady_time
    async def test_outlives_a_long_pack_by_its_heartbeats(self, quick: Quick) -> None:
        """PRICED-122: the message stays invisible, too."""
        async with quick(3) as scene:
            seconds = 4
            run = await scene.submit("sleeps", timebox_sec=seconds)
            async with scene.worker(2) as worker:
                await _is_done_with(worker, run)
                told = f"the pack took longer than {seconds} s"
                check_failed(await scene.row(run), "TIMEBOX_EXCEEDED", told)
            assert len(scene.queue.asked("extend")) >= 2
            assert len(scene.queue.asked("ack")) == 1, "it was delivered once"

    async def test_that_is_lost_ends_the_pack_and_nothing_else(self, scene: Scene) -> None:
        """PRICED-123: nothing is uploaded or claimed, the message is acknowledged, the slot continues."""
        run, next_one = await scene.submit(f"sleeps {scene.begun()}"), await scene.submit()
        async with scene.worker() as worker:
            await eventually(scene.begun().exists)
            assert worker.running == (run.run_id,)
            scene.stack.skew.move(LEASE_SECONDS + 10)
            await Reaper(scene.stack.priced).turn()
            check_failed(await scene.row(run), "WORKER_TIMEOUT", None)
            assert (await scene.ended(next_one)).status is Status.COMPLETED
            await scene.settled()
            assert worker.restarts == 0, "it minded its cancel"
        assert [key for key, *_ in scene.results.asked("put") if run.run_id in key] == []
        assert scene.stack.points.reached.count("worker.after_upload") == 1
        assert await scene.envelope(run) is None

    async def test_that_is_lost_before_the_claim_leaves_the_end_to_the_other(self, scene: Scene) -> None:
        """PRICED-18, PRICED-120, PRICED-126, PRICED-155: the object stays, and nothing points to it."""

        async def reaped() -> None:
            scene.stack.skew.move(LEASE_SECONDS + 10)
            await Reaper(scene.stack.priced).turn()

        scene.stack.points.meanwhile["worker.after_upload"] = reaped
        run = await scene.submit()
        async with scene.worker():
            check_failed(await scene.ended(run), "WORKER_TIMEOUT", None)
            await scene.settled()
        assert await scene.envelope(run) is not None
        assert await scene.stack.balance() == CREDIT - FEE

    @pytest.mark.steady_time
    async def test_outlives_a_ledger_that_is_away_for_less_than_its_time(
        self, quick: Quick, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-123"""
        monkeypatch.setattr(lease_module, "_AGAIN_SECONDS", 0.1)
        async with quick(3) as scene:
            scene.ledger.down["transact_softly"] = 3
            seconds = 4
            run = await scene.submit("sleeps", timebox_sec=seconds)
            async with scene.worker() as worker:
                await _is_done_with(worker, run)
                told = f"the pack took longer than {seconds} s"
                check_failed(await scene.row(run), "TIMEBOX_EXCEEDED", told)

    @pytest.mark.steady_time
    async def test_is_taken_for_lost_when_the_ledger_is_away_for_longer(self, quick: Quick) -> None:
        """PRICED-123"""
        async with quick(3) as scene:
            scene.ledger.down["transact_softly"] = FOR_EVER
            run = await scene.submit(f"sleeps {scene.begun()}")
            async with scene.worker() as worker:
                await eventually(lambda: bool(worker.running))
                await eventually(lambda: worker.running == ())
                assert scene.begun().exists(), "it was lost before it had begun"
                await scene.settled()
            assert (await scene.row(run)).stage is Stage.OPEN
            scene.stack.skew.move(LEASE_SECONDS + 10)
            await scene.stack.keep()
            check_failed(await scene.row(run), "WORKER_TIMEOUT", None)

    async def test_that_is_lost_in_the_moment_of_the_outcome_is_lost(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-123"""
        both = asyncio.Event()

        async def beat(*_: object) -> bool:
            both.set()
            return False

        async def work() -> str:
            await both.wait()
            return "an outcome"

        monkeypatch.setattr(lease_module, "beat", beat)
        run = await scene.stack.started(await scene.submit())
        async with lease_of(scene, run, beat_seconds=0.05) as lease:
            assert await lease.while_mine(work()) is None
            assert lease.is_lost

    async def test_ends_by_itself_although_a_heartbeat_is_under_way(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-123: a later answer of the ledger that it was renewed is ignored."""
        answered = asyncio.Event()

        async def beat(*_: object) -> bool:
            await answered.wait()
            return True

        monkeypatch.setattr(lease_module, "beat", beat)
        run = await scene.stack.started(await scene.submit())
        async with lease_of(scene, run, beat_seconds=0.05) as lease:
            lease.lease_until = time.monotonic() + 0.3
            assert await lease.while_mine(asyncio.Event().wait()) is None
            answered.set()
            await eventually(lambda: lease.beating is not None and lease.beating.done())
            assert lease.is_lost

    @pytest.mark.steady_time
    async def test_that_is_lost_by_the_last_beat_is_lost(self, quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
        """PRICED-123: it was under way while the outcome came."""
        beating, answered = asyncio.Event(), asyncio.Event()

        async def beat(*_: object) -> bool:
            beating.set()
            await answered.wait()
            return False

        async def answer() -> None:
            await beating.wait()
            asyncio.get_running_loop().call_later(0.1, answered.set)

        monkeypatch.setattr(lease_module, "beat", beat)
        async with quick(3) as scene:
            scene.stack.points.meanwhile["worker.after_upload"] = answer
            run = await scene.stack.submitted(an_ask(inputs={"question": "sleeps", "seconds": 1.3}))
            async with scene.worker():
                await eventually(lambda: len(scene.queue.asked("ack")) == 1)
            assert "worker.after_upload" in scene.stack.points.reached
            assert (await scene.row(run)).stage is Stage.OPEN

    @pytest.mark.parametrize("fails", [False, True])
    async def test_is_not_lost_by_a_queue_that_does_not_answer(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch, fails: bool
    ) -> None:
        """PRICED-122, PRICED-123: the ledger alone decides."""
        asked = []

        async def extend(_: Delivery) -> None:
            asked.append(1)
            if fails:
                raise ValueError("a defect")
            await asyncio.Event().wait()

        monkeypatch.setattr(scene.stack.priced.queue, "extend", extend)
        run = await scene.stack.started(await scene.submit())
        async with lease_of(scene, run, beat_seconds=0.05) as lease:
            await lease.while_mine(eventually(lambda: len(scene.ledger.asked("transact_softly")) >= 4))
            assert not lease.is_lost
            await eventually(lambda: len(asked) >= (3 if fails else 1))
        assert fails or asked == [1]
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("visibility")]

    async def test_is_not_renewed_after_its_stop(self, scene: Scene) -> None:
        run = await scene.stack.started(await scene.submit())
        async with lease_of(scene, run, beat_seconds=0.05) as lease:
            await lease.stop()
            await lease.stop()
            await asyncio.sleep(0.2)
        assert not lease.is_lost
        assert scene.ledger.asked("transact_softly") == []


class TestAnOutage:
    @pytest.mark.parametrize("name", ["ledger", "results"])
    async def test_stops_the_receiving_until_it_is_over(self, scene: Scene, name: str) -> None:
        """PRICED-119: and burns no receives."""
        store: Watched = getattr(scene, name)
        store.down["*"] = FOR_EVER
        run = await scene.submit()
        async with scene.worker():
            await eventually(lambda: len(store.asked("probe" if name == "ledger" else "ping")) >= 4)
            assert scene.queue.asked("receive") == []
            store.down.clear()
            assert (await scene.ended(run)).status is Status.COMPLETED
        assert scene.queue.asked("nack") == []

    async def test_that_begins_while_a_receive_waits_ends_it(self, scene: Scene) -> None:
        """PRICED-119"""
        async with scene.worker() as worker:
            await eventually(lambda: len(scene.queue.asked("receive")) == 1)
            scene.results.down["*"] = FOR_EVER
            worker._fitness.nudge()
            await eventually(worker._fitness.unwell.is_set)
            run = await scene.submit()
            pings = len(scene.results.asked("ping"))
            await eventually(lambda: len(scene.results.asked("ping")) >= pings + 3)
            assert (await scene.row(run)).status is Status.QUEUED
            scene.results.down.clear()
            assert (await scene.ended(run)).status is Status.COMPLETED
        assert scene.queue.asked("nack") == []

    async def test_that_nobody_has_seen_yet_costs_a_receive_and_no_money(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-119: a run that could not be ended well is not started."""
        monkeypatch.setattr(fitness_module, "_FRESH_SECONDS", 0.0)
        async with scene.worker():
            await eventually(lambda: len(scene.queue.asked("receive")) == 1)
            scene.results.down["*"] = FOR_EVER
            run = await scene.submit()
            await eventually(lambda: len(scene.queue.asked("nack")) == 1)
        assert (await scene.row(run)).status is Status.QUEUED

    async def test_of_the_queue_is_waited_for(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pyoco_server.loops.priced.pack_lane._PAUSE_SECONDS", 0.05)
        scene.queue.down["receive"] = 3
        run = await scene.submit()
        async with scene.worker():
            assert (await scene.ended(run)).status is Status.COMPLETED


class TestStopping:
    @pytest.mark.usefixtures("cold_hosts")
    async def test_lets_what_runs_finish_and_receives_nothing_more(self, scene: Scene) -> None:
        """PRICED-125"""
        run, other = await scene.submit(f"sleeps {scene.begun()}", timebox_sec=1), await scene.submit()
        async with scene.worker(drain_seconds=200) as worker:
            await eventually(lambda: worker.running == (run.run_id,))
        check_failed(await scene.row(run), "TIMEBOX_EXCEEDED", "the pack took longer than 1 s")
        assert (await scene.row(other)).status is Status.QUEUED
        assert pack_processes() == []

    async def test_leaves_what_cannot_finish_without_a_claim(self, scene: Scene) -> None:
        """PRICED-125: its process is killed, and the reaper ends the run."""
        run = await scene.submit(f"ignores_cancel {scene.begun()}")
        async with scene.worker(drain_seconds=0.2) as worker:
            await eventually(scene.begun().exists)
        assert worker.running == ()
        assert is_gone(int(scene.begun().read_text()))
        row = await scene.row(run)
        assert (row.status, row.stage) == (Status.PROCESSING, Stage.OPEN)
        assert scene.queue.asked("ack") == []
        scene.stack.skew.move(LEASE_SECONDS + 10)
        await scene.stack.keep()
        check_failed(await scene.row(run), "WORKER_TIMEOUT", None)

    async def test_does_not_cut_an_end_short(self, scene: Scene) -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def waits() -> None:
            reached.set()
            await go_on.wait()

        scene.stack.points.meanwhile["finalize.after_claim"] = waits
        run = await scene.submit()
        async with scene.worker() as worker:
            await reached.wait()
            stopping = asyncio.create_task(worker.stop(0.05))
            asyncio.get_running_loop().call_later(0.3, go_on.set)
            await stopping
            assert (await scene.row(run)).status is Status.COMPLETED

    async def test_and_starting_at_random_leaves_nothing_behind(self, scene: Scene) -> None:
        """As every loop: ten tasks start and stop it at random."""
        chance = random.Random(7)
        worker = PackLane(scene.priced, Still(), 3, files=scene.files)

        async def fiddle() -> None:
            for _ in range(10):
                await (worker.start() if chance.random() < 0.5 else worker.stop(chance.choice((0.0, 0.01))))
                await asyncio.sleep(chance.random() * 0.01)

        async with asyncio.timeout(200):
            await asyncio.gather(*(fiddle() for _ in range(10)))
            await worker.stop()
            await worker.stop()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("packs", "Fitness"))]

    async def test_and_starting_again_goes_on(self, scene: Scene) -> None:
        async with scene.worker() as worker:
            await worker.start()
            await worker.stop()
            await worker.start()
            assert (await scene.ended(await scene.submit())).status is Status.COMPLETED

    async def test_a_worker_that_cannot_load_its_packs_does_not_start(self, scene: Scene) -> None:
        hosts = PackHosts(1, 0, PACKS.values(), PackConfig(), "no_such_module:executors")
        worker = PackLane(scene.priced, hosts, 1, files=scene.files)
        with pytest.raises(UsageError):
            await worker.start()
        await worker.stop()


async def _is_done_with(worker: PackLane, run: PricedRun) -> None:
    """Whatever its outcome is: it may be lost, and is not ended then."""
    await eventually(lambda: worker.running == (run.run_id,))
    await eventually(lambda: worker.running == ())


class Still:
    """An executor whose every process is taken."""

    restarts = 0
    packs = frozenset({"decision"})

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def reserve_process(self) -> Any:
        return _Seat()


class _Seat:
    async def begin(self, call: Call) -> Execution:
        raise NotImplementedError

    def leave(self) -> None: ...
