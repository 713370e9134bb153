"""Files of a run on their way to its pack: fetched before the timebox, bounded, its tenant's own, and gone after."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.inputs import pieces
from pyoco_server.core.packs import PackSpec
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Stage, Status
from pyoco_server.errors import NoRoom
from pyoco_server.executors.packs.port import Call, Executed, Outcome, Stopped
from pyoco_server.loops.priced.pack_lane import PackLane
from pyoco_server.ports.inputs.scratch import Scratch
from support.priced.pack_scenes import FOR_EVER, LEASE_SECONDS, QUICK, Scene, check_failed, check_refunded, open_scene
from support.priced.stacks import ACME, an_ask
from support.waiting import eventually

MINE = f"dpp/{ACME}/0b0e8f0a-5d0c-4b7a-9d0e-2f6f1c1a7b11/a.png"
SECOND = MINE.replace("a.png", "b.png")
THEIRS = MINE.replace(ACME, "bert")


class Reader:
    """Executes the given function in this process, with the call."""

    packs = frozenset({"ocr"})
    restarts = 0

    def __init__(self, execute: Callable[[Call], PackResult]) -> None:
        self._execute = execute
        self.calls: list[Call] = []
        self.is_slow = False
        self._stopped = asyncio.Event()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def reserve_process(self) -> Any:
        return self

    def leave(self) -> None: ...

    async def begin(self, call: Call) -> Any:
        self.calls.append(call)
        return self

    async def outcome(self) -> Outcome:
        if self.is_slow:
            await self._stopped.wait()
            return Stopped()
        return Executed(self._execute(self.calls[-1]))

    def cancel(self) -> None:
        self._stopped.set()

    kill = cancel


def reads(call: Call) -> PackResult:
    found = {key: hashlib.sha256(Path(place).read_bytes()).hexdigest() for key, place in call.files.items()}
    return PackResult(data={"found": found}, actual_cost_usd_micros=10_000)


def keys_of(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(inputs["keys"])


@pytest.fixture
async def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    async with open_scene(request, tmp_path, monkeypatch) as scene:
        scene.priced = replace(scene.priced, packs={"ocr": PackSpec(name="ocr", inputs=lambda _: (), files=keys_of)})
        yield scene


async def store(scene: Scene, key: str, data: bytes) -> None:
    await scene.stack.priced.inputs.put(key, pieces(data), len(data), "image/png", hashlib.sha256(data).hexdigest())


async def submit(scene: Scene, *keys: str) -> PricedRun:
    return await scene.stack.submitted(an_ask(pack_type="ocr", inputs={"keys": list(keys)}))


class Working:
    def __init__(self, scene: Scene, reader: Reader) -> None:
        self._scene, self.reader = scene, reader
        self._worker = PackLane(scene.priced, reader, 1, files=scene.files, tries=QUICK)

    async def __aenter__(self) -> Working:
        await self._worker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.stop(0.2)
        assert left(self._scene) == [], "nothing is left, however it ended"


def left(scene: Scene) -> list[Path]:
    return [path for path in scene.begun("pack-files").rglob("*") if path.is_file() and path.suffix != ".lock"]


async def test_a_pack_finds_its_files_and_they_are_gone_after(scene: Scene) -> None:
    """PRICED-124, PRICED-147: copies of the run's own, which other users cannot read"""
    one, two = os.urandom(3_000_000), b"two"
    await store(scene, MINE, one)
    await store(scene, SECOND, two)
    modes: list[int] = []

    def looks(call: Call) -> PackResult:
        modes.extend(stat.S_IMODE(Path(place).parent.stat().st_mode) for place in call.files.values())
        return reads(call)

    run = await submit(scene, MINE, SECOND, MINE)
    async with Working(scene, Reader(looks)) as working:
        ended = await scene.ended(run)
        assert left(scene) == []
    assert ended.status is Status.COMPLETED, ended.error_detail
    (call,) = working.reader.calls
    assert list(call.files) == [MINE, SECOND]
    assert set(modes) == {0o700}
    envelope = await scene.envelope(run)
    assert envelope is not None
    assert envelope["data"]["found"] == {MINE: hashlib.sha256(one).hexdigest(), SECOND: hashlib.sha256(two).hexdigest()}
    assert len(scene.inputs.asked("fetch")) == 2, "each is fetched once"


async def test_a_run_without_files_asks_no_store_and_makes_no_folder(scene: Scene) -> None:
    run = await submit(scene)
    async with Working(scene, Reader(reads)):
        assert (await scene.ended(run)).status is Status.COMPLETED
    assert scene.inputs.asked("fetch") == []
    assert not scene.begun("pack-files").exists()


@pytest.mark.parametrize("key", [THEIRS, "dpp/", f"dpp/{ACME}/../bert/a.png", f"dpp/{ACME}//a.png", "a.png"])
async def test_a_file_of_another_tenant_is_never_read(scene: Scene, key: str) -> None:
    """PRICED-147: by the worker itself, should the gateway ever let one through"""
    await store(scene, THEIRS, b"secret")
    await store(scene, MINE, b"mine")
    run = await submit(scene, MINE, key)
    async with Working(scene, Reader(reads)) as working:
        ended = await scene.ended(run)
    check_failed(ended, "PACK_FAILED", "INPUT_REFUSED: file 2 of 2 is not one of this tenant's")
    assert working.reader.calls == []
    assert scene.inputs.asked("fetch") == []


async def test_a_pack_that_cannot_tell_its_files_costs_its_own_run_alone(scene: Scene) -> None:
    """PRICED-118: a plug-in's own code, and it raises"""

    def fails(_: Mapping[str, Any]) -> tuple[str, ...]:
        raise RuntimeError("the check of a pack raised KeyError")

    scene.priced = replace(scene.priced, packs={"ocr": PackSpec(name="ocr", inputs=lambda _: (), files=fails)})
    run = await submit(scene, MINE)
    async with Working(scene, Reader(reads)):
        check_failed(await scene.ended(run), "PACK_FAILED", "INPUT_REFUSED: the pack cannot tell which files it needs")


async def test_a_missing_file_ends_the_run_for_the_minimum_fee(scene: Scene) -> None:
    """PRICED-118"""
    await store(scene, MINE, b"one")
    run = await submit(scene, MINE, SECOND)
    async with Working(scene, Reader(reads)) as working:
        ended = await scene.ended(run)
    check_failed(ended, "PACK_FAILED", "INPUT_MISSING: file 2 of 2 is not there: it was never uploaded, or has expired")
    assert working.reader.calls == []


async def test_a_file_that_is_too_large_ends_the_run_for_the_minimum_fee(scene: Scene) -> None:
    """PRICED-118"""
    scene.priced = replace(scene.priced, config=replace(scene.priced.config, pack_input_max_bytes=1000))
    await store(scene, MINE, bytes(1001))
    run = await submit(scene, MINE)
    async with Working(scene, Reader(reads)):
        ended = await scene.ended(run)
    check_failed(ended, "PACK_FAILED", "INPUT_TOO_LARGE: file 1 of 1 has more than 1000 bytes")


async def test_a_store_that_comes_back_in_time_costs_nothing(scene: Scene) -> None:
    """PRICED-115: tries as for results"""
    await store(scene, MINE, b"one")
    scene.inputs.down["fetch"] = 2
    run = await submit(scene, MINE)
    async with Working(scene, Reader(reads)):
        assert (await scene.ended(run)).status is Status.COMPLETED


async def test_a_store_that_stays_away_ends_the_run_at_no_cost(scene: Scene) -> None:
    """SAFE-3: it was started, and starts no second time"""
    await store(scene, MINE, b"one")
    scene.inputs.down["fetch"] = FOR_EVER
    run = await submit(scene, MINE)
    async with Working(scene, Reader(reads)):
        ended = await scene.ended(run)
    check_refunded(ended, "INPUT_UNAVAILABLE: file 1 of 1 could not be read from its store")


async def test_a_worker_without_room_ends_the_run_and_goes_on(scene: Scene) -> None:
    await store(scene, MINE, b"one")
    scene.begun("pack-files").write_text("not a folder")
    run, other = await submit(scene, MINE), await submit(scene)
    async with Working(scene, Reader(reads)):
        ended = await scene.ended(run)
        assert (await scene.ended(other)).status is Status.COMPLETED
    check_refunded(ended, "INPUT_UNAVAILABLE: the worker has no room for the files of the run")


async def test_a_lease_is_kept_while_files_are_fetched(scene: Scene) -> None:
    """PRICED-122"""
    await store(scene, MINE, b"one")
    real, go_on = scene.stack.priced.inputs, asyncio.Event()

    class Slow:
        async def fetch(self, *arguments: Any) -> Any:
            await go_on.wait()
            return await real.fetch(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    scene.priced = replace(scene.priced, inputs=Slow())
    run = await submit(scene, MINE)
    first = None
    async with Working(scene, Reader(reads)):

        async def has_beaten() -> bool:
            nonlocal first
            row = await scene.row(run)
            first = first or row.lease_expires_at
            return first is not None and row.lease_expires_at is not None and row.lease_expires_at > first

        await eventually(has_beaten)
        go_on.set()
        assert (await scene.ended(run)).status is Status.COMPLETED


async def test_a_run_that_is_lost_while_it_reads_leaves_no_files(scene: Scene) -> None:
    """PRICED-123, PRICED-125"""
    await store(scene, MINE, b"one")
    reader = Reader(reads)
    reader.is_slow = True
    run = await submit(scene, MINE)
    async with Working(scene, reader):
        await eventually(lambda: bool(reader.calls))
        assert len(left(scene)) == 1
    row = await scene.row(run)
    assert (row.status, row.stage) == (Status.PROCESSING, Stage.OPEN)
    scene.stack.skew.move(LEASE_SECONDS + 10)
    await scene.stack.keep()


class TestScratch:
    async def test_what_a_killed_worker_left_goes_and_what_a_living_one_has_stays(self, tmp_path: Path) -> None:
        program = (
            "import asyncio, pathlib, sys, time\n"
            "from pyoco_server.ports.inputs.scratch import Scratch\n"
            "async def main():\n"
            "    async with Scratch(pathlib.Path(sys.argv[1])).room() as room:\n"
            "        (room / 'a').write_bytes(b'x'); print(room, flush=True); time.sleep(600)\n"
            "asyncio.run(main())\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying, contextlib.ExitStack() as stack:
            stack.callback(dying.kill)  # Popen waits for the end of its process when its block ends
            assert dying.stdout is not None
            theirs = Path((await asyncio.to_thread(dying.stdout.readline)).strip())
            living, fresh = Scratch(tmp_path), Scratch(tmp_path)
            async with living.room() as room:
                await fresh.start()
                assert (theirs / "a").exists()
                dying.send_signal(signal.SIGKILL)
                await asyncio.to_thread(dying.wait)
                (tmp_path / "stray").mkdir()
                await fresh.start()
                assert not theirs.parent.exists()
                assert not (tmp_path / "stray").exists()
                assert room.exists()
            await living.stop()
            await living.stop()
        assert list(tmp_path.iterdir()) == []

    async def test_a_room_goes_with_all_that_is_in_it_even_when_it_is_left_in_a_hurry(self, tmp_path: Path) -> None:
        scratch, inside = Scratch(tmp_path), asyncio.Event()

        async def stay() -> None:
            async with scratch.room() as room:
                (room / "a").write_bytes(b"x")
                inside.set()
                await asyncio.sleep(600)

        staying = asyncio.create_task(stay())
        await inside.wait()
        staying.cancel()
        await asyncio.gather(staying, return_exceptions=True)
        assert not [path for path in tmp_path.rglob("*") if path.name == "a"]
        await scratch.stop()
        assert list(tmp_path.iterdir()) == []

    async def test_no_place_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(NoRoom):
            async with Scratch(tmp_path / "file").room():
                pass
        await Scratch(tmp_path / "file").start()
