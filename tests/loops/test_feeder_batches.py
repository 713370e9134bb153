"""How many changes the feeder writes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import pytest

from contracts.runs import a_run
from pyoco_server.loops import feeder as feeder_module
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.ports.index.port import Mark
from pyoco_server.ports.runs.port import Changes, Removed, Stored
from support.waiting import eventually

HOUR = 3600.0


class _Feed:
    """A store of runs of which only the changes are known."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Changes] = asyncio.Queue()
        self._revision = 0

    def tell(self, count: int) -> None:
        """So many runs have changed."""
        first, self._revision = self._revision + 1, self._revision + count
        items = tuple(Stored(a_run(), revision) for revision in range(first, self._revision + 1))
        self._queue.put_nowait(Changes(items, True, "e"))

    async def changes(self, after: int, epoch: str, on_heard: Callable[[], None]) -> AsyncGenerator[Changes, None]:
        while True:
            yield await self._queue.get()


class _Index:
    """Remembers how many changes came at once."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    async def open(self) -> Mark:
        return Mark()

    async def close(self) -> None: ...

    async def damaged(self) -> None:
        await asyncio.Event().wait()

    async def reset(self, epoch: str) -> None: ...

    async def mark_complete(self) -> None: ...

    async def apply(self, items: tuple[Stored | Removed, ...], mark: Mark) -> None:
        self.batches.append(len(items))


@pytest.fixture
async def feed() -> _Feed:
    return _Feed()


@pytest.fixture
def index() -> _Index:
    return _Index()


@pytest.fixture
async def feeder(feed: _Feed, index: _Index) -> AsyncIterator[IndexFeeder]:
    feeder = IndexFeeder(feed, index)  # type: ignore[arg-type]  # as much of both as it needs
    await feeder.start()
    yield feeder
    await feeder.stop()


async def test_after_many_changes_more_are_collected_and_whoever_waits_does_not(
    feed: _Feed, index: _Index, feeder: IndexFeeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is dear and what is in it is cheap; a list that has to be true now says so by `hurry`."""
    monkeypatch.setattr(feeder_module, "_COLLECT_SECONDS_MANY", HOUR)
    feed.tell(feeder_module._MANY)
    await eventually(lambda: index.batches == [feeder_module._MANY])
    for count in range(1, 4):
        feed.tell(1)
        await eventually(lambda: len(feeder._pending) == count)  # noqa: B023  (asked at once)
    feeder.hurry()
    await eventually(lambda: index.batches == [feeder_module._MANY, 3])
    feed.tell(1)  # few again: no need to hurry
    await eventually(lambda: index.batches == [feeder_module._MANY, 3, 1])


async def test_a_few_changes_are_written_soon(feed: _Feed, index: _Index, feeder: IndexFeeder) -> None:
    for count in range(1, 4):
        feed.tell(feeder_module._MANY - 1)
        await eventually(lambda: len(index.batches) == count)  # noqa: B023  (asked at once)
    assert await feeder.caught_up(10)
