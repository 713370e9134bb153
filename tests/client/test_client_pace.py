"""The pace of a watch and of a wait, by a clock of our own. No server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from pyoco_server.client.resuming import Clocks
from pyoco_server.client.waiting import Waiting
from pyoco_server.client.watching import Watching
from support.scripted_gateway import event


class Clock:
    """Seconds, as far as they were moved on. No chance: every pause is as long as it can be."""

    def __init__(self) -> None:
        self.now = 100.0

    @property
    def clocks(self) -> Clocks:
        return Clocks(steady=lambda: self.now, wall=lambda: self.now, chance=lambda: 0.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def one_connection(watching: Watching, *frames: bytes) -> float:
    """The pause after it."""
    watching.connect()
    assert watching.opened(200, "text/event-stream")
    for frame in frames:
        list(watching.feed(frame))
    return watching.pause_after_end()


class TestWatching:
    @pytest.mark.parametrize(
        ("hint", "pauses"),
        [
            (b"", [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]),
            (b"retry: 0\n\n", [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]),
            (b"retry: 1500\n\n", [1.5, 1.5, 1.5, 2.0, 4.0, 5.0, 5.0]),
            (b"retry: 999999\n\n", [10.0] * 7),
        ],
    )
    def test_connections_without_news_come_less_and_less_often(
        self, clock: Clock, hint: bytes, pauses: list[float]
    ) -> None:
        """FLOW-128: a server's hint makes a pause longer, never shorter"""
        watching = Watching(run_id="r", clocks=clock.clocks, retry_seconds=30)
        assert [one_connection(watching, hint, event(3, "RUNNING")) for _ in pauses] == pauses

    def test_a_connection_that_lasted_was_a_good_one(self, clock: Clock) -> None:
        """A quiet run behind a proxy that ends every stream after a minute is not left alone for longer and longer"""
        watching = Watching(run_id="r", clocks=clock.clocks, retry_seconds=30)
        beat = event(3, "RUNNING", "heartbeat")
        for _ in range(3):
            one_connection(watching, beat)
        assert one_connection(watching, beat) == 2.0
        watching.connect()
        clock.now += 5
        list(watching.feed(beat))
        assert watching.pause_after_end() == 0.25

    def test_thirty_seconds_are_thirty(self, clock: Clock) -> None:
        """FLOW-119: though a moment has gone by since they were asked for"""
        watching = Watching(run_id="r", clocks=clock.clocks, retry_seconds=30, timeout_sec=30)
        clock.now += 0.04
        assert watching.connect().query["timeout_sec"] == 30


class TestWaiting:
    def waiting(self, clock: Clock, seconds: float = 1000.0) -> Waiting:
        return Waiting(run_id="r", clocks=clock.clocks, seconds=seconds)

    def test_after_a_stream_in_vain_looks_take_over_for_longer_and_longer(self, clock: Clock) -> None:
        waiting, deaf = self.waiting(clock, 1e6), []
        for _ in range(7):
            assert waiting.may_listen()
            waiting.listened()
            began = clock.now
            while not waiting.may_listen():
                clock.now += 1
            deaf.append(clock.now - began)
        assert deaf == [30, 60, 120, 240, 480, 600, 600]

    def test_the_last_second_is_too_short_to_listen(self, clock: Clock) -> None:
        waiting = self.waiting(clock)
        clock.now += 999.5
        assert not waiting.may_listen()

    def test_no_pause_goes_beyond_the_end(self, clock: Clock) -> None:
        """FLOW-416"""
        waiting = self.waiting(clock)
        pauses = [waiting.pause() for _ in range(20)]
        assert pauses == sorted(pauses)
        assert pauses[-1] == 1.0
        clock.now += 999.75
        assert waiting.pause() == 0.25
        clock.now += 0.25
        with pytest.raises(TimeoutError):
            waiting.pause()

    @pytest.mark.parametrize(("seconds", "first"), [(0, 1), (-5, 1), (0.5, 1), (7, 7)])
    def test_zero_seconds_are_one_look(self, clock: Clock, seconds: float, first: float) -> None:
        assert self.waiting(clock, seconds).first_look_ends_at == clock.now + first

    def test_what_is_told_is_what_was_heard(self, clock: Clock) -> None:
        waiting, snapshot = self.waiting(clock, 60), {"status": "PENDING"}
        assert waiting.timeout_message("refused") == "the state of run r could not be read within 60 s: refused"
        asked: Any = snapshot
        assert not waiting.ends_with(asked)
        assert waiting.timeout_message("") == "run r is still PENDING after 60 s"
        assert waiting.timeout_message("refused") == "run r is still PENDING after 60 s, as far as is known: refused"


def test_who_was_never_there_has_the_usual_time_alone(clock: Clock) -> None:
    watching = Watching(run_id="r", clocks=clock.clocks, retry_seconds=1, patience_sec=100)
    watching.connect()
    watching.pause_after_failure(httpx.ConnectError("x"))
    clock.now += 1
    with pytest.raises(httpx.ConnectError):
        watching.pause_after_failure(httpx.ConnectError("x"))
    one_connection(watching, event(3, "RUNNING"))
    watching.pause_after_failure(httpx.ConnectError("x"))
    clock.now += 90
    watching.pause_after_failure(httpx.ConnectError("x"))
    clock.now += 10
    with pytest.raises(httpx.ConnectError):
        watching.pause_after_failure(httpx.ConnectError("x"))
