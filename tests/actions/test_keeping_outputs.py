"""Large outputs are stored before the record refers to them, and removed when no record does."""

from __future__ import annotations

import io
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions import keep_outputs as keeping
from pyoco_server.actions.keep_outputs import TenantUse, keep_outputs
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.values.kept import Kept
from pyoco_server.errors import NotStored, ObjectNotFound
from pyoco_server.loops.output_sweeper import OutputSweeper
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored
from support.backends import ANNA, Clock, recorded
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time

TENANT = Caller("acme", "key")
FIRST, SECOND = b"a" * 300_000, b"b" * 5000


class File:
    def __init__(self, data: bytes) -> None:
        self._data, self.closed = io.BytesIO(data), False

    def read(self, offset: int, length: int) -> bytes:
        self._data.seek(offset)
        return self._data.read(length)

    def close(self) -> None:
        self.closed = True


def entry(part: int, offset: int, size: int) -> dict[str, Any]:
    return {"content_type": "application/json", "bytes": size, "sha256": "0" * 64, "part": part, "offset": offset}


def kept(data: bytes = FIRST + SECOND) -> Kept:
    outputs = {"a": entry(0, 0, len(FIRST)), "b": entry(1, 0, len(SECOND)), "c": {"error": 54, "detail": "x"}}
    return Kept({"task": "a"}, outputs, (len(FIRST), len(SECOND)), File(data))


async def a_run(backend: Backend, caller: Caller = TENANT) -> Stored:
    stored, _ = await recorded(backend, caller=caller)
    taken = await backend.runs.replace(claim(stored.run, ANNA, backend.new_id(), backend.clock()), stored.revision)
    assert isinstance(taken, Stored)
    return taken


async def read(backend: Backend, name: str, start: int, length: int) -> bytes:
    async with aclosing(backend.outputs.read(name, start, length)) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def names(backend: Backend) -> list[str]:
    return [each.name for each in await backend.outputs.all()]


def parts_of(run: Run) -> list[str]:
    return [f"{run.run_id}.{run.attempt_id}.{number}" for number in range(2)]


async def test_each_part_becomes_an_object(backend: Backend) -> None:
    """RES-15, RES-19"""
    run = (await a_run(backend)).run
    result = await keep_outputs(backend, run, kept(), TenantUse())
    assert (result.stored(), result.parts) == (kept().stored(), ())
    assert await names(backend) == parts_of(run)
    assert {each.tenant_id for each in await backend.outputs.all()} == {"acme"}
    for _ in range(2):  # any number of times
        assert await read(backend, parts_of(run)[0], 299_000, 1000) == FIRST[299_000:]
        assert await read(backend, parts_of(run)[1], 0, 5000) == SECOND
    with pytest.raises(ObjectNotFound):
        await read(backend, "unknown", 0, 1)


async def test_nothing_is_asked_without_parts(backend: Backend) -> None:
    """A small run costs no round trip."""
    trouble = Trouble()
    small = Kept({"task": "a"}, {})
    run = (await a_run(backend)).run
    assert await keep_outputs(with_trouble(backend, trouble, "outputs"), run, small, TenantUse()) is small
    assert trouble.calls == []


async def test_a_tenant_has_a_bound(backend: Backend) -> None:
    """RES-18"""
    size = len(FIRST) + len(SECOND)
    config = replace(backend.config, tenant_outputs_max_bytes=2 * size)
    bounded, use = replace(backend, config=config), TenantUse()
    for number in range(3):
        run = (await a_run(backend)).run
        result = await keep_outputs(bounded, run, kept(), use)
        for name in ("a", "b"):
            found = (result.outputs or {})[name]
            assert ("error" in found) == (number == 2), number
    assert found == {
        "error": 55,
        "detail": f"the tenant may keep PYOCO_TENANT_OUTPUTS_MAX_BYTES={2 * size} bytes, and has {2 * size}",
    }
    assert (result.outputs or {})["c"] == {"error": 54, "detail": "x"}
    counted_anew = await keep_outputs(bounded, run, kept(), TenantUse())
    assert "error" in (counted_anew.outputs or {})["a"]
    other = (await a_run(backend, Caller("other", "key"))).run
    assert "error" not in ((await keep_outputs(bounded, other, kept(), use)).outputs or {})["a"]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_short_outage_is_waited_for(backend: Backend, when: Any) -> None:
    run = (await a_run(backend)).run
    trouble = Trouble({"outputs.put": [when, when]})
    result = await keep_outputs(with_trouble(backend, trouble, "outputs"), run, kept(), TenantUse())
    assert result.stored() == kept().stored()
    assert await read(backend, parts_of(run)[0], 0, 10) == FIRST[:10]


async def test_a_long_outage_and_a_broken_file_fail_nothing(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """RES-14"""
    monkeypatch.setattr(keeping, "_PATIENCE_SECONDS", 3.0)
    run = (await a_run(backend)).run

    async def refused(*_: object) -> None:
        raise NotStored("the disk is full")

    short = await keep_outputs(backend, run, kept(FIRST), TenantUse())
    monkeypatch.setattr(backend.outputs, "put", refused)
    for result in (short, await keep_outputs(backend, run, kept(), TenantUse())):
        assert [(result.outputs or {})[name]["error"] for name in "abc"] == [56, 56, 54]
    assert "the disk is full" in (result.outputs or {})["a"]["detail"]


class TestTheSweeper:
    async def stored(self, backend: Backend) -> Stored:
        taken = await a_run(backend)
        await keep_outputs(backend, taken.run, kept(), TenantUse())
        return taken

    async def test_removes_what_a_dead_worker_has_left_and_what_has_expired(
        self, backend: Backend, clock: Clock
    ) -> None:
        """RES-15: killed between storing and ending; ended; gone."""
        running, died, ended, gone = [await self.stored(backend) for _ in range(4)]
        clock.now = max(each.modified for each in await backend.outputs.all())
        again = claim(died.run, ANNA, "newer", clock.now)
        assert isinstance(await backend.runs.replace(again, died.revision), Stored)
        done = conclude(ended.run, Completed(kept=kept()), clock.now)
        assert isinstance(await backend.runs.replace(done, ended.revision), Stored)
        assert await backend.runs.withdraw(gone.run.run_id, gone.revision)
        sweeper = OutputSweeper(backend)
        clock.now += 3500
        await sweeper.turn()
        assert sweeper.removed == 0  # not an hour old
        clock.now += 200
        await sweeper.turn()
        assert sweeper.removed == 4
        assert sorted(await names(backend)) == sorted(parts_of(running.run) + parts_of(ended.run))
        written = await backend.runs.find(ended.run.run_id)
        assert isinstance(written, Stored)
        assert await backend.runs.withdraw(ended.run.run_id, written.revision)
        await sweeper.turn()
        assert sweeper.removed == 4  # it does not ask again before the retention is over
        clock.now += backend.config.runs_retention_sec
        await sweeper.turn()
        assert await names(backend) == parts_of(running.run)

    async def test_goes_on_after_an_outage(self, backend: Backend, clock: Clock) -> None:
        lost = await self.stored(backend)
        assert await backend.runs.withdraw(lost.run.run_id, lost.revision)
        clock.now = 4e9
        trouble = Trouble({"outputs.delete": [AFTER]})
        sweeper = OutputSweeper(with_trouble(backend, trouble, "outputs"), every_seconds=0.01)
        await sweeper.start()

        async def are_gone() -> bool:
            return not await names(backend)

        await eventually(are_gone)
        await sweeper.stop()
