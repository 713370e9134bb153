"""The feeder of the dead letters' index: restarts, trouble, and ten tasks that start and stop it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.dead_letter_index import changes, letter_ids, some_letters
from contracts.dead_letters import a_letter
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Unavailable
from pyoco_server.loops import feed
from pyoco_server.loops.dead_letter_feeder import DeadLetterFeeder
from pyoco_server.ports.dead_letters.jetstream import JetStreamDeadLetters
from pyoco_server.ports.dead_letters.port import DeadLetterChanges
from pyoco_server.ports.dead_letters.sqlite import SqliteDeadLetterIndex
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def index(tmp_path: Path) -> SqliteDeadLetterIndex:
    return SqliteDeadLetterIndex(tmp_path / "letters.db")


@pytest.fixture
def letters(link: Link, prepared: NatsBackendConfig) -> JetStreamDeadLetters:
    return JetStreamDeadLetters(link, prepared, 0.05)


@pytest.fixture
def queue(link: Link, prepared: NatsBackendConfig) -> JetStreamQueue:
    return JetStreamQueue(link, prepared)


async def shows(index: SqliteDeadLetterIndex, *wanted: int) -> None:
    async def is_so() -> bool:
        try:
            return await letter_ids(index) == list(wanted)
        except Unavailable:  # it is being opened again
            return False

    await eventually(is_so)


def running() -> set[asyncio.Task[object]]:
    return {each for each in asyncio.all_tasks() if each.get_name() == "DeadLetterFeeder"}


async def test_the_index_follows_what_comes_and_what_goes(
    letters: JetStreamDeadLetters, index: SqliteDeadLetterIndex, queue: JetStreamQueue
) -> None:
    feeder = DeadLetterFeeder(letters, index)
    await feeder.start()
    assert await feeder.caught_up(60)
    for number in range(3):
        await queue.bury(a_letter(), f"{number}")
    await shows(index, 3, 2, 1)
    await letters.delete(2)
    await shows(index, 3, 1)
    await feeder.stop()


async def test_a_restart_reads_what_is_new_and_drops_what_went_meanwhile(
    letters: JetStreamDeadLetters, index: SqliteDeadLetterIndex, queue: JetStreamQueue
) -> None:
    feeder = DeadLetterFeeder(letters, index)
    await feeder.start()
    for number in range(4):
        await queue.bury(a_letter(), f"{number}")
    await shows(index, 4, 3, 2, 1)
    await feeder.stop()
    assert not await feeder.caught_up(0)
    await letters.delete(1)
    await letters.delete(3)
    await queue.bury(a_letter(), "new")
    asked: list[tuple[int, str]] = []

    class Noting(JetStreamDeadLetters):
        def changes(
            self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
        ) -> AsyncGenerator[DeadLetterChanges, None]:
            asked.append((after, epoch))
            return super().changes(after, epoch, on_heard)

    again = DeadLetterFeeder(Noting(letters._link, _config(letters), 0.05), index)
    await again.start()
    assert await again.caught_up(60)
    assert await letter_ids(index) == [5, 4, 2], "true means that what went is not shown either"
    assert [after for after, _ in asked] == [4]
    await again.stop()


def _config(letters: JetStreamDeadLetters) -> NatsBackendConfig:
    return NatsBackendConfig(dlq_stream=letters._stream, dlq_subject_prefix=letters._prefix[:-1])


async def test_a_stream_made_anew_is_read_anew(
    link: Link,
    prepared: NatsBackendConfig,
    letters: JetStreamDeadLetters,
    index: SqliteDeadLetterIndex,
    queue: JetStreamQueue,
) -> None:
    feeder = DeadLetterFeeder(letters, index)
    await feeder.start()
    for number in range(3):
        await queue.bury(a_letter(tag="old"), f"{number}")
    await shows(index, 3, 2, 1)
    await link.api(f"STREAM.DELETE.{prepared.dlq_stream}", {}, dict[str, Any])
    await ensure(link, resources_of(prepared))
    await queue.bury(a_letter(tag="new"), "new")
    await shows(index, 1)
    assert await letter_ids(index, tag="new") == [1]
    assert await index.total() == 1
    await feeder.stop()


async def test_a_damaged_index_is_built_anew(
    letters: JetStreamDeadLetters,
    index: SqliteDeadLetterIndex,
    queue: JetStreamQueue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(feed, "_AGAIN_SECONDS", 0.01)
    feeder = DeadLetterFeeder(letters, index)
    await feeder.start()
    for number in range(40):
        await queue.bury(a_letter(error="x" * 4000), f"{number}")
    await shows(index, *range(40, 0, -1))
    await feeder.stop()
    await feeder.start()
    file = tmp_path / "letters.db"
    with file.open("r+b") as damaged:
        damaged.seek(4096)
        damaged.write(b"\xff" * (file.stat().st_size - 4096))
    await queue.bury(a_letter(), "the one that finds out")
    await shows(index, *range(41, 0, -1))
    assert await feeder.caught_up(60)
    assert "built anew" in caplog.text
    await feeder.stop()


async def test_damage_that_a_reader_finds_is_mended_while_no_letter_comes(
    index: SqliteDeadLetterIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists count as untrue at once, and until all has been told again."""
    monkeypatch.setattr(feed, "_AGAIN_SECONDS", 0.01)
    starts: list[int] = []
    heard: list[Callable[[], None]] = []
    may_end, may_tell = asyncio.Event(), asyncio.Event()
    may_tell.set()

    class Feed:
        async def changes(
            self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
        ) -> AsyncGenerator[DeadLetterChanges, None]:
            starts.append(after)
            heard.append(on_heard)
            await may_tell.wait()
            try:
                on_heard()
                yield changes(*some_letters(9))
                await asyncio.Event().wait()
            finally:
                async with asyncio.timeout(200):
                    await may_end.wait()

    feeder = DeadLetterFeeder(Feed(), index)  # type: ignore[arg-type]  # nothing else of it is used
    await feeder.start()
    assert await feeder.caught_up(60)
    may_tell.clear()
    for ending in ("", "-wal"):
        (tmp_path / f"letters.db{ending}").write_bytes(b"")
    with pytest.raises(Unavailable, match="damaged"):
        await letter_ids(index)
    await eventually(lambda: not feeder._caught_up.is_set())
    heard[0]()
    assert not await feeder.caught_up(0.1)
    may_end.set()
    await eventually(lambda: starts == [0, 0])
    assert not await feeder.caught_up(0)
    may_tell.set()
    assert await feeder.caught_up(60)
    assert await letter_ids(index) == list(range(9, 0, -1))
    await feeder.stop()


async def test_a_feed_that_ends_is_begun_again(index: SqliteDeadLetterIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_AGAIN_SECONDS", 0.01)
    starts: list[int] = []

    class Feed:
        async def changes(
            self, after: int = 0, epoch: str = "", _: Callable[[], None] = lambda: None
        ) -> AsyncGenerator[DeadLetterChanges, None]:
            starts.append(after)
            yield changes(*some_letters(3))

    feeder = DeadLetterFeeder(Feed(), index)  # type: ignore[arg-type]  # nothing else of it is used
    await feeder.start()
    await eventually(lambda: starts[:3] == [0, 3, 3])
    await feeder.stop()


async def test_trouble_with_a_write_is_repeated_from_the_mark(
    index: SqliteDeadLetterIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_AGAIN_SECONDS", 0.01)
    starts: list[int] = []

    class Feed:
        async def changes(
            self, after: int = 0, epoch: str = "", _: Callable[[], None] = lambda: None
        ) -> AsyncGenerator[DeadLetterChanges, None]:
            starts.append(after)
            items = some_letters(4)
            yield changes(*items[after : after + 2])
            if len(starts) < 3:
                raise ValueError("a feed that falls over")
            yield changes(*items[2:])
            await asyncio.Event().wait()

    feeder = DeadLetterFeeder(Feed(), index)  # type: ignore[arg-type]  # nothing else of it is used
    await feeder.start()
    await shows(index, 4, 3, 2, 1)
    await eventually(lambda: starts == [0, 2, 4])
    await feeder.stop()


async def test_word_of_what_went_is_no_sign_that_what_came_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is looked at by another way than its letters come: that one may be cut off alone."""
    monkeypatch.setattr(feed, "SILENCE_SECONDS", 0.2)
    heard: list[Callable[[], None]] = []

    class Feed:
        async def changes(
            self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
        ) -> AsyncGenerator[DeadLetterChanges, None]:
            heard.append(on_heard)
            on_heard()
            yield changes(*some_letters(9))
            for letter_id in range(1, 9):
                await asyncio.sleep(0.05)
                yield changes(gone={letter_id})
            await asyncio.Event().wait()

    index = SqliteDeadLetterIndex(tmp_path / "index.db")
    feeder = DeadLetterFeeder(Feed(), index)  # type: ignore[arg-type]  # nothing else of it is used
    await feeder.start()
    try:
        assert await feeder.caught_up(5)
        await shows(index, 9)
        assert not await feeder.caught_up(0)
        heard[0]()
        assert await feeder.caught_up(0)
    finally:
        await feeder.stop()


async def test_an_index_that_cannot_be_opened_stops_the_start(letters: JetStreamDeadLetters, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    feeder = DeadLetterFeeder(letters, SqliteDeadLetterIndex(tmp_path / "file" / "letters.db"))
    with pytest.raises(Unavailable):
        await feeder.start()
    assert running() == set()
    await feeder.stop()


@pytest.mark.parametrize("seed", range(3))
async def test_ten_tasks_start_and_stop_it_at_random_and_afterwards_nothing_runs(
    letters: JetStreamDeadLetters, index: SqliteDeadLetterIndex, seed: int
) -> None:
    """DESIGN 6"""
    chance = random.Random(seed)
    feeder = DeadLetterFeeder(letters, index)

    async def meddle() -> None:
        for _ in range(6):
            await chance.choice([feeder.start, feeder.start, feeder.stop])()
            await asyncio.sleep(chance.choice([0, 0, 0.002]))
            assert len(running()) <= 1

    async with asyncio.timeout(200):
        await asyncio.gather(*(meddle() for _ in range(10)))
        await feeder.stop()
    assert running() == set()
    with pytest.raises(Unavailable):
        await letter_ids(index)
