"""Lines on the way from a worker to the store: while NATS is away, refuses, or answers too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

import pytest

from pyoco_server.core.run_log.attempt_log import AttemptLog, Limits
from pyoco_server.core.run_log.batch import Batch, decode_batch, encode_batch
from pyoco_server.core.run_log.line import Line, Stream
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.errors import NotStored, Unavailable
from pyoco_server.executors.capture.port import Captured
from pyoco_server.loops import log_sender
from pyoco_server.loops.log_sender import LogSender, StoredLines
from pyoco_server.ports.run_logs.port import LogStore, StoredBatches
from support.waiting import eventually

RUN = Captured("run-1", 1)


class FaultyLogs:
    """A store of one process that can be away, or lose the response of a write that it has made."""

    def __init__(self) -> None:
        self.stored: dict[int, tuple[str, int, bytes]] = {}
        self.is_away = self.loses_responses = self.refuses = False
        self._number = 0

    async def append(self, run_id: str, attempt: int, payload: bytes, after: int) -> int:
        await asyncio.sleep(0)
        if self.is_away or self.refuses:
            raise NotStored("away")
        own = {number: each for number, each in self.stored.items() if each[:2] == (run_id, attempt)}
        newest = max(own, default=0)
        if newest and own[newest][2] == payload:
            return newest
        self._number += 1
        self.stored[self._number] = run_id, attempt, payload
        if self.loses_responses:
            self.loses_responses = False
            raise Unavailable("no answer")
        return self._number

    async def delete(self, number: int) -> None:
        self.stored.pop(number, None)

    def batches(self, run_id: str) -> AsyncGenerator[StoredBatches, None]:
        raise NotImplementedError

    async def state(self) -> LogStore:
        raise NotImplementedError

    def lines(self) -> list[Line]:
        assembly = Assembly()
        found = [
            line
            for _, attempt, payload in self.stored.values()
            for line in assembly.add(attempt, decode_batch(payload), 5.0)
        ]
        return [*found, *assembly.end()]


@pytest.fixture
def logs() -> FaultyLogs:
    return FaultyLogs()


def a_sender(logs: FaultyLogs, limits: Limits | None = None, buffer_bytes: int = 100_000) -> LogSender:
    return LogSender(StoredLines(logs), limits or Limits(), 20, buffer_bytes, lambda: not logs.is_away)


def shipments(log: AttemptLog) -> list[Shipment]:
    found = []
    while (shipment := log.take(1.0)) is not None:
        found.append(shipment)
    return found


def printed(count: int, limits: Limits | None = None, *, every: int = 10, is_over: bool = True) -> list[Shipment]:
    """A batch of every ten lines."""
    log, found = AttemptLog(limits or Limits()), list[Shipment]()
    for number in range(1, count + 1):
        log.feed(Stream.STDOUT, None, b"line %d %s\n" % (number, b"x" * 80), 1.0)
        if number % every == 0:
            found += shipments(log)
    if is_over:
        log.finish(2.0)
    return found + shipments(log)


async def sent(sender: LogSender, some: list[Shipment]) -> None:
    for shipment in some:
        sender.collect(RUN, shipment)
        await asyncio.sleep(0)
    await eventually(lambda: not any(box.waiting for box in sender._outboxes.values()))


async def test_lines_are_stored_in_order_and_nothing_is_kept_afterwards(logs: FaultyLogs) -> None:
    """LOG-7, LOG-28"""
    sender = a_sender(logs)
    await sent(sender, printed(35))
    assert [line.seq for line in logs.lines()] == list(range(1, 36))
    assert sender.totals.lines == {"stdout": 35, "stderr": 0, "log": 0, "system": 0}
    assert sender.totals.bytes == sum(len(line.text) + 1 for line in logs.lines())
    assert sender._outboxes == {}


async def test_a_lost_response_stores_nothing_twice(logs: FaultyLogs) -> None:
    """LOG-7"""
    sender = a_sender(logs)
    logs.loses_responses = True
    await sent(sender, printed(20))
    assert [line.seq for line in logs.lines()] == list(range(1, 21))
    assert len(logs.stored) == 3


async def test_while_nats_is_away_the_newest_lines_are_kept_and_the_gap_is_marked(logs: FaultyLogs) -> None:
    """LOG-9, LOG-26"""
    some = printed(400)
    sender = a_sender(logs, buffer_bytes=10 * len(some[0].payload))
    await sent(sender, some[:5])
    logs.is_away = True
    for shipment in some[5:]:
        sender.collect(RUN, shipment)
        assert sum(each.size for each in sender._outboxes[RUN].waiting) <= 10 * len(some[0].payload)
    await asyncio.sleep(0.02)
    logs.is_away = False
    await eventually(lambda: not sender._outboxes)
    lines = logs.lines()
    gaps = [line for line in lines if line.gap is not None]
    assert [(line.gap and line.gap.why.value, line.id[1] + 1) for line in gaps] == [("buffer", lines[51].seq)]
    assert lines[-1].seq == 400
    assert gaps[0].gap is not None
    missing = lines[51].seq - 51
    assert gaps[0].gap.lines == missing == sender.totals.dropped["buffer"]
    assert gaps[0].gap.size == sum(len(f"line {seq} ") + 81 for seq in range(51, 51 + missing))


async def test_all_runs_together_are_bounded(logs: FaultyLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-26: a thousand runs that end while NATS is away do not fill the worker's memory"""
    some = printed(50)
    monkeypatch.setattr(log_sender, "_ALL_BYTES_MAX", 40 * len(some[0].payload))
    sender = a_sender(logs)
    logs.is_away = True
    for number in range(100):
        for shipment in some[:5]:
            sender.collect(Captured(f"run-{number}", 1), shipment)
    held = sum(each.size for box in sender._outboxes.values() for each in box.waiting)
    assert held <= (40 + 100) * len(some[0].payload)
    logs.is_away = False
    await eventually(lambda: not any(box.waiting for box in sender._outboxes.values()))


async def test_the_tail_is_shortened_as_it_grows(logs: FaultyLogs) -> None:
    """LOG-24: what is stored of an attempt stays within its bounds, while it runs and afterwards"""
    limits = Limits(line_bytes=256, head_bytes=2000, tail_bytes=10_000)
    sender = a_sender(logs, limits)
    some = printed(1000, limits)
    for at in range(0, len(some), 10):
        await sent(sender, some[at : at + 10])
        size = sum(len(line.text) + 1 for line in logs.lines() if line.gap is None)
        assert size <= limits.head_bytes + limits.tail_bytes
    lines = logs.lines()
    assert [line.gap.why.value for line in lines if line.gap] == ["limit"]
    assert [line.seq for line in lines[:5]] == [1, 2, 3, 4, 5]
    assert lines[-1].seq == 1000
    assert sum(line.gap.lines or 0 for line in lines if line.gap) + len(lines) - 1 == 1000


async def test_a_batch_that_nats_refuses_is_dropped_after_a_while(
    logs: FaultyLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sender, "_REFUSED_SECONDS", 0.0)
    sender = a_sender(logs)
    some = printed(20)
    logs.refuses = True
    sender.collect(RUN, some[0])
    await eventually(lambda: sender.totals.dropped["buffer"] == 10)
    logs.refuses = False
    await sent(sender, some[1:])
    assert [line.gap.why.value for line in logs.lines() if line.gap] == ["buffer"]


async def test_a_stop_waits_for_what_is_on_its_way_and_not_for_ever(
    logs: FaultyLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-5"""
    sender = a_sender(logs)
    for shipment in printed(20):
        sender.collect(RUN, shipment)
    await sender.stop()
    assert [line.seq for line in logs.lines()] == list(range(1, 21))
    monkeypatch.setattr(log_sender, "_LAST_SECONDS", 0.01)
    logs.is_away = True
    sender.collect(Captured("run-2", 1), printed(10)[0])
    await sender.stop()


async def test_batches_that_come_twice_are_stored_once(logs: FaultyLogs) -> None:
    """LOG-30: a worker over TCP repeats those whose answer was lost"""
    sender, done = a_sender(logs), list[int]()
    one, two = printed(15)
    for number, shipment in enumerate((one, one, two, two)):
        sender.collect(RUN, shipment, partial(done.append, number))
    await eventually(lambda: not sender._outboxes)
    assert done == [0, 1, 2, 3]
    assert len(logs.stored) == 2


@pytest.mark.parametrize("is_tail", [False, True])
async def test_batches_without_text_are_bounded_as_well(logs: FaultyLogs, is_tail: bool) -> None:
    """LOG-24, LOG-30: a worker over TCP may send any number of them"""
    sender = a_sender(logs, Limits(head_bytes=500, tail_bytes=500))
    empty = encode_batch(Batch(1, 0))
    await sent(
        sender, [Shipment(1, 0, 0, 0, is_tail, is_last=False, payload=empty + bytes(each)) for each in range(90)]
    )
    assert sum(len(payload) for _, _, payload in logs.stored.values()) <= 1000
