"""Clocks and randomness of a simulation."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import secrets
import sys
import tempfile
import threading
import time
import types
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pyoco_server.client import io_sync
from pyoco_server.loops.tally import Tally
from pyoco_server.ports.nats import clock as nats_clock
from pyoco_server.ports.objects import meta
from simulation.bindings import find_bindings
from simulation.loop import SimLoop
from simulation.process import Process
from simulation.virtual_time import virtual_world

_START = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop(1)
    yield loop
    loop.close()


def _draw_everything() -> list[Any]:
    return [
        os.urandom(8),
        uuid.uuid4(),
        uuid.uuid1(),
        secrets.token_hex(4),
        secrets.randbelow(10**9),
        random.random(),
        random.SystemRandom().random(),
        random.Random().random(),
        next(tempfile._get_candidate_names()),  # type: ignore[attr-defined]
    ]


def test_clocks_follow_the_loop_and_only_the_wall_clock_is_skewed(loop: SimLoop) -> None:
    async def read() -> tuple[float, float]:
        await asyncio.sleep(3600)
        for clock in (time.monotonic(), time.perf_counter(), time.clock_gettime(time.CLOCK_BOOTTIME)):
            assert clock == loop.time()
        assert time.monotonic_ns() == pytest.approx(loop.time() * 1e9)
        assert time.time_ns() == pytest.approx(time.time() * 1e9)
        assert time.clock_gettime(time.CLOCK_REALTIME) == time.time()
        assert time.strftime("%Y-%m") == "2026-01"
        assert time.gmtime()[:2] == (2026, 1)
        return time.time(), loop.elapsed()

    async def main() -> None:
        right, wrong = Process("right"), Process("wrong", skew_seconds=-250.0)
        for process in (right, wrong):
            wall, elapsed = await process.spawn(read())
            assert wall == pytest.approx(_START + elapsed + process.skew_seconds, abs=1e-5)

    with virtual_world(loop, 1):
        loop.run_until_complete(main())


def test_sleep_lets_virtual_time_pass(loop: SimLoop) -> None:
    began = time.perf_counter()
    with virtual_world(loop, 1):
        time.sleep(3600)
        io_sync.sleep(3600)  # bound by `from time import sleep`
        assert loop.elapsed() == pytest.approx(7200)
    assert time.perf_counter() - began < 60


def test_randomness_follows_the_seed() -> None:
    drawn = []
    for seed in (1, 1, 2):
        loop = SimLoop(0)
        with virtual_world(loop, seed):
            drawn.append(_draw_everything())
        loop.close()
    assert drawn[0] == drawn[1]
    assert not any(one == other for one, other in zip(drawn[0], drawn[2], strict=True))


def test_afterwards_everything_is_as_before(loop: SimLoop) -> None:
    holders = (time, os, random, uuid, secrets, tempfile, random.Random, meta, io_sync)
    before, state = [dict(vars(holder)) for holder in holders], random.getstate()
    with virtual_world(loop, 1):
        _draw_everything()
    assert random.getstate() == state
    assert [dict(vars(holder)) for holder in holders] == before
    assert _draw_everything() != _draw_everything()
    assert abs(time.time() - datetime.now(UTC).timestamp()) < 60


def test_uuids_have_their_versions(loop: SimLoop) -> None:
    with virtual_world(loop, 1):
        assert (uuid.uuid1().version, uuid.uuid4().version) == (1, 4)
        assert uuid.uuid1(node=5).node == 5


def test_other_threads_have_the_real_clock(loop: SimLoop) -> None:
    read: list[float] = []
    with virtual_world(loop, 1):
        thread = threading.Thread(target=lambda: read.append(time.time()))
        thread.start()
        thread.join()
    assert abs(read[0] - time.time()) < 60


def test_functions_that_the_product_bound_at_import_are_replaced(loop: SimLoop) -> None:
    with virtual_world(loop, 1):
        assert nats_clock._steady() == loop.time()
        assert Tally()._clock() == pytest.approx(_START)
        virtual_datetime: Any = vars(meta)["datetime"]
        assert virtual_datetime.now(UTC).timestamp() == pytest.approx(_START)
        assert isinstance(datetime.now(UTC), virtual_datetime)
        assert type(virtual_datetime.fromisoformat("2026-01-01")) is datetime
    assert Tally.__init__.__defaults__ is not None
    assert Tally.__init__.__defaults__[0] is time.time


def test_no_clock_of_the_product_escapes() -> None:
    """Whatever a deployment imports, of the product and of the NATS client: no original is left."""
    for name in (
        "wiring.backend",
        "wiring.programs",
        "doors.http.app",
        "doors.frames.server",
        "loops.tcp_worker.worker",
    ):
        importlib.import_module(f"pyoco_server.{name}")
    originals = {id(getattr(time, name)): name for name in ("time", "monotonic", "sleep", "perf_counter", "time_ns")}
    assert len(find_bindings(("pyoco_server", "nats"), originals)) >= 8
    loop = SimLoop(1)
    with virtual_world(loop, 1):
        assert find_bindings(("pyoco_server", "nats"), originals) == []
    loop.close()


def test_a_module_imported_during_a_simulation_has_the_right_clocks_in_and_after_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = types.ModuleType("pyoco_server.imported_late")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for seed in (1, 2):
        loop = SimLoop(seed)
        with virtual_world(loop, seed):
            if seed == 1:
                exec(
                    "import time\nfrom time import time as now\ndef read(clock=time.time): return clock()", vars(module)
                )
            assert (module.now(), module.read()) == pytest.approx((_START, _START))
        loop.close()
        assert (module.now(), module.read()) == pytest.approx((time.time(), time.time()), abs=60)


def test_one_simulation_at_a_time(loop: SimLoop) -> None:
    with virtual_world(loop, 1), pytest.raises(RuntimeError, match="running already"), virtual_world(loop, 1):
        pass
