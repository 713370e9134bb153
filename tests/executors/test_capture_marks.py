"""The marks of a host, and how its guard understands them, in one process."""

from __future__ import annotations

import os
import random
import socket
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from pyoco_server.core.run_log.line import Stream
from pyoco_server.executors.capture.marks import Marks
from pyoco_server.executors.capture.page import Page
from pyoco_server.executors.capture.reader import Reader, _Item

SECRET = b"secret"


@dataclass
class Pair:
    """A host and its guard."""

    marks: Marks
    reader: Reader
    pipes: dict[int, int]
    #: What was attributed to each run and task, by stream.
    found: dict[tuple[int, str | None, Stream], bytes] = field(default_factory=lambda: defaultdict(bytes))
    #: The runs whose end was seen.
    ended: list[int] = field(default_factory=list)

    def take(self, item: _Item, ts: float) -> None:
        if item.stream is Stream.SYSTEM:
            self.ended.append(item.run)
        if item.data:
            assert item.run not in self.ended
            self.found[item.run, item.task, item.stream] += item.data


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    page = Page()
    (out_read, out), (err_read, err), (records_read, records) = os.pipe(), os.pipe(), os.pipe()
    ours, theirs = socket.socketpair()
    marks = Marks(page, SECRET, {1: out, 2: err}, records, 20, 1000)
    reader = Reader(page, SECRET, {1: out_read, 2: err_read}, records_read, ours)
    made = Pair(marks, reader, {1: out, 2: err})
    monkeypatch.setattr(reader, "_take", made.take)
    yield made
    for fd in (out_read, out, err_read, err, records_read, records):
        os.close(fd)
    ours.close()
    theirs.close()


def test_a_run_that_prints_costs_one_mark(pair: Pair) -> None:
    """Those of the runs before are still in the pipe"""
    for number in range(1, 21):
        pair.marks.begin_run(number)
        pair.marks.begin_task("a")
        os.write(pair.pipes[1], b"line\n")
        pair.marks.end_task()
        pair.marks.end_run()
    pair.reader._read()
    out, err = pair.reader._pipes
    assert (out.held.count(SECRET), bytes(err.held)) == (20, b"")
    pair.reader.drain()
    assert pair.ended == list(range(1, 21))


def test_a_silent_run_costs_no_mark(pair: Pair) -> None:
    for number in range(1, 4):
        pair.marks.begin_run(number)
        pair.marks.begin_task("a")
        os.write(pair.pipes[2], b"line\n" if number == 1 else b"")
        pair.marks.end_task()
        pair.marks.end_run()
    pair.reader._read()
    assert [bytes(pipe.held).count(SECRET) for pipe in pair.reader._pipes] == [0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_every_byte_belongs_to_the_task_that_wrote_it(pair: Pair, seed: int) -> None:
    """LOG-3, LOG-7: wherever the guard reads in between. The end of a run comes once, behind all its bytes."""
    chance = random.Random(seed)
    written: dict[tuple[int, str | None, Stream], bytes] = defaultdict(bytes)

    def write(run: int, task: str | None) -> None:
        for pipe, stream in ((1, Stream.STDOUT), (2, Stream.STDERR)):
            if chance.random() < 0.4:
                data = b"%d %d\n" % (run, chance.randrange(10))
                os.write(pair.pipes[pipe], data)
                written[run, task, stream] += data

    def read() -> None:
        if chance.random() < 0.4:
            pair.reader.drain()

    for run in range(1, 40):
        pair.marks.begin_run(run)
        read()
        write(run, None)
        for task in ("a", "b")[: chance.randrange(3)]:
            read()
            pair.marks.begin_task(task)
            read()
            write(run, task)
            read()
            pair.marks.end_task()
        read()
        pair.marks.end_run()
        read()
    pair.reader.drain()
    assert dict(pair.found) == dict(written)
    assert pair.ended == sorted(set(pair.ended))
    assert {run for run, _, _ in written} <= set(pair.ended)
