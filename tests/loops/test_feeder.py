"""The feeder: when lists count as true, and what happens when the store is another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import pytest

from contracts.index import ids
from contracts.runs import NOW, a_run
from pyoco_server.errors import Unavailable
from pyoco_server.loops import feed as feed_module
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.ports.index.port import Mark, RunFilter
from pyoco_server.ports.index.sqlite import SqliteIndex
from pyoco_server.ports.runs.port import Changes, Removed, Stored
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time


class Feed:
    """A store of runs of which only the changes are known, and those by us."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._queue: asyncio.Queue[Changes] = asyncio.Queue()
        self.on_heard: Callable[[], None] = lambda: None

    def tell(self, *items: Stored | Removed, caught_up: bool = True, epoch: str = "e") -> None:
        self._queue.put_nowait(Changes(items, caught_up, epoch))

    async def changes(
        self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[Changes, None]:
        self.asked.append((after, epoch))
        self.on_heard = on_heard
        try:
            while True:
                yield await self._queue.get()
        finally:
            await self.may_end.wait()


class SlowIndex(SqliteIndex):
    """Its writes are done at once, and answered at a word of the test."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_write, self.is_writing, self.was_whole = asyncio.Event(), asyncio.Event(), 0
        self.may_write.set()

    async def apply(self, items: tuple[Stored | Removed, ...], mark: Mark) -> None:
        await super().apply(items, mark)
        self.is_writing.set()
        await self.may_write.wait()

    async def mark_complete(self) -> None:
        self.was_whole += 1
        await super().mark_complete()


@pytest.fixture
def index(tmp_path: Path) -> SlowIndex:
    return SlowIndex(tmp_path / "index.db")


@pytest.fixture
async def feed() -> Feed:
    return Feed()


@contextlib.asynccontextmanager
async def feeding(feed: Feed, index: SlowIndex) -> AsyncIterator[IndexFeeder]:
    feeder = IndexFeeder(feed, index)  # type: ignore[arg-type]  # as much of a store as it needs
    await feeder.start()
    try:
        yield feeder
    finally:
        feed.may_end.set()
        index.may_write.set()
        await feeder.stop()


@pytest.fixture
async def feeder(feed: Feed, index: SlowIndex) -> AsyncIterator[IndexFeeder]:
    async with feeding(feed, index) as feeder:
        yield feeder


async def test_the_index_is_whole_once_all_that_was_there_is_written(
    feed: Feed, index: SlowIndex, feeder: IndexFeeder
) -> None:
    feed.tell(Stored(a_run(), 5), caught_up=False)
    await eventually(lambda: index.applied(5, 0))
    assert not await feeder.caught_up(0)
    assert index.was_whole == 0
    index.may_write.clear()
    index.is_writing.clear()
    feed.tell(Stored(a_run(), 6))
    await index.is_writing.wait()
    assert not await feeder.caught_up(0)
    index.may_write.set()
    assert await feeder.caught_up(60)
    assert index.was_whole == 1
    feed.tell(Stored(a_run(), 7))
    await eventually(lambda: index.applied(7, 0))
    assert index.was_whole == 1
    assert len(await ids(index)) == 3


async def test_another_store_is_read_from_its_beginning_before_lists_count_as_true(
    feed: Feed, index: SlowIndex, feeder: IndexFeeder
) -> None:
    """A write that was under way when the store changed does not make the lists of the new one true."""
    feed.tell(Stored(a_run(), 40))
    assert await feeder.caught_up(60)
    index.may_write.clear()
    index.is_writing.clear()
    feed.tell(Stored(a_run(), 41))
    await index.is_writing.wait()
    run = a_run()
    feed.tell(Stored(run, 1), caught_up=False, epoch="other")
    await eventually(lambda: not feeder._caught_up.is_set())
    index.may_write.set()
    await eventually(lambda: index.applied(1, 0))

    async def only_the_new_one() -> bool:
        return await ids(index) == [run.run_id]

    await eventually(only_the_new_one)
    assert not await feeder.caught_up(0)
    feed.tell(Removed(run.run_id, 2), caught_up=True, epoch="other")
    assert await feeder.caught_up(60)
    assert await ids(index) == []
    assert index.was_whole == 2


async def test_a_restart_asks_for_what_came_after(tmp_path: Path) -> None:
    """And a walk that was in progress continues unaffected. FLOW-111"""
    runs = [a_run(updated_at=NOW + n) for n in range(6)]
    feed = Feed()
    feeder = IndexFeeder(feed, index := SqliteIndex(tmp_path / "index.db"))  # type: ignore[arg-type]
    await feeder.start()
    feed.tell(*(Stored(run, n + 1) for n, run in enumerate(runs)))
    assert await feeder.caught_up(60)
    first = await index.page(RunFilter(), 2)
    await feeder.stop()
    feeder = IndexFeeder(feed, index := SqliteIndex(tmp_path / "index.db"))  # type: ignore[arg-type]
    await feeder.start()
    feed.tell(Stored(a_run(run_id=runs[1].run_id, updated_at=NOW + 99), 9))
    assert await feeder.caught_up(60)
    assert feed.asked == [(0, ""), (6, "e")]
    second = await index.page(RunFilter(), 9, first.next)
    assert [line.run_id for line in second.items] == [run.run_id for run in runs[3::-1]]
    await feeder.stop()


async def test_a_feed_that_went_silent_makes_no_list_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was current once. What was stored since then is unknown."""
    monkeypatch.setattr(feed_module, "SILENCE_SECONDS", 0.2)
    feed, index = Feed(), SlowIndex(tmp_path / "index.db")
    async with feeding(feed, index) as feeder:
        feed.tell()
        assert await feeder.caught_up(60)
        for _ in range(8):
            await asyncio.sleep(0.05)
            feed.on_heard()
            assert await feeder.caught_up(0)
        await asyncio.sleep(0.3)
        assert not await feeder.caught_up(0)
        waiting = asyncio.create_task(feeder.caught_up(60))
        await asyncio.sleep(0)
        feed.tell(Stored(a_run(), 1), caught_up=False)  # back, and still behind
        await asyncio.sleep(0.15)
        assert not await feeder.caught_up(0)
        assert not waiting.done()
        feed.tell(Stored(a_run(), 2))
        assert await waiting


async def test_what_was_heard_counts_once_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that cannot be written is as far behind as one that hears nothing."""
    monkeypatch.setattr(feed_module, "SILENCE_SECONDS", 0.2)
    feed, index = Feed(), SlowIndex(tmp_path / "index.db")
    async with feeding(feed, index) as feeder:
        feed.tell()
        assert await feeder.caught_up(60)
        index.may_write.clear()
        feed.tell(Stored(a_run(), 1))
        await index.is_writing.wait()
        for _ in range(8):
            feed.on_heard()
            await asyncio.sleep(0.05)
        assert not await feeder.caught_up(0)
        index.may_write.set()
        feed.on_heard()
        assert await feeder.caught_up(60)
        index.may_write.clear()
        index.is_writing.clear()
        feed.tell(Stored(a_run(), 2))
        await index.is_writing.wait()
        await asyncio.sleep(0.3)
        index.may_write.set()
        await asyncio.sleep(0.1)
        assert not await feeder.caught_up(0), "what is written now was heard long ago"
        feed.on_heard()
        assert await feeder.caught_up(60)
        assert index.was_whole == 1


async def test_a_feeder_that_was_stopped_has_to_catch_up_again(
    feed: Feed, index: SlowIndex, feeder: IndexFeeder
) -> None:
    feed.tell()
    assert await feeder.caught_up(60)
    await feeder.stop()
    await feeder.start()
    assert not await feeder.caught_up(0)
    feed.tell()
    assert await feeder.caught_up(60)


async def test_damage_that_a_reader_finds_is_mended_while_nothing_is_written(
    feed: Feed, index: SlowIndex, feeder: IndexFeeder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lists count as untrue at once, however long the feed takes to end, and until all has been told again."""
    stored = [Stored(a_run(), n + 1) for n in range(300)]
    feed.tell(*stored)
    assert await feeder.caught_up(60)
    for ending in ("", "-wal"):
        (tmp_path / f"index.db{ending}").write_bytes(b"")
    feed.may_end.clear()
    with pytest.raises(Unavailable, match="damaged"):
        await ids(index)
    await eventually(lambda: not feeder._caught_up.is_set())
    feed.on_heard()
    assert not await feeder.caught_up(0.2)
    feed.may_end.set()
    await eventually(lambda: len(feed.asked) == 2)
    assert feed.asked == [(0, ""), (0, "")]
    assert "built anew" in caplog.text
    feed.tell(*stored[:9], caught_up=False)
    await eventually(lambda: index.applied(9, 0))
    assert not await feeder.caught_up(0)
    feed.tell(*stored[9:])
    assert await feeder.caught_up(60)
    assert len((await index.page(RunFilter(), 1000)).items) == 300


async def test_lists_are_untrue_from_the_moment_a_write_fails(
    feed: Feed, index: SlowIndex, feeder: IndexFeeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.tell()
    assert await feeder.caught_up(60)

    async def fails(*_: object) -> None:
        raise Unavailable("no space left")

    with monkeypatch.context() as trouble:
        trouble.setattr(index, "apply", fails)
        feed.tell(Stored(a_run(), 1))
        await eventually(lambda: not feeder._caught_up.is_set())
    assert len(feed.asked) == 1, "it is opened again later"
    await eventually(lambda: len(feed.asked) == 2)
    feed.tell(Stored(a_run(), 1))
    assert await feeder.caught_up(60)
