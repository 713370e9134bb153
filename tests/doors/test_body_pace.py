"""How fast a body has to arrive: 1 KiB/s averaged over any 30 s, and 600 s plus 1 s per MiB in all (SAFE-11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
from starlette.requests import Request
from starlette.types import Message

from pyoco_server.doors.http.pace import BodyPace
from pyoco_server.doors.http.requests import chunks_of
from pyoco_server.errors import TooSlow

KIB, MIB = 1024, 1024 * 1024


def cut_after(pieces: Iterable[tuple[float, int]], declared: int = 0) -> float | None:
    """When a body is cut whose pieces come after so many seconds each; None: it is not cut before its last piece."""
    pace, now = BodyPace(declared), 0.0
    for seconds, size in pieces:
        if seconds > pace.seconds_left:
            return now + pace.seconds_left
        now += seconds
        pace.arrived(size, seconds)
    return None


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        pytest.param([(30.0, 1)], None, id="small and late"),
        pytest.param([(30.5, 1)], 30.0, id="small and too late"),
        pytest.param([(1.0, 1)] * 100, 30.0, id="one byte each second"),
        pytest.param([(1.0, KIB)] * 500, None, id="exactly the rate"),
        pytest.param([(1.0, KIB - 1)] * 500, 30.0, id="just below the rate"),
        pytest.param([(30.0, 30 * KIB)] * 19, None, id="in one piece each 30 s"),
        pytest.param([(1.0, 10 * MIB), (29.0, 1), (2.0, 1)], 31.0, id="a large piece does not count for longer"),
        pytest.param([(1.0, 30 * KIB), (20.0, 29 * KIB), (10.5, 1)], 31.0, id="the span moves"),
        pytest.param([(1.0, 30 * KIB), (20.0, 30 * KIB), (29.5, 1)], None, id="the newer piece suffices"),
        pytest.param([(1.0, 2 * KIB)] * 2000, 601.0, id="the rate does not extend the whole"),
    ],
)
def test_a_body_is_cut_when_its_span_falls_below_the_rate(
    pieces: list[tuple[float, int]], wanted: float | None
) -> None:
    """SAFE-11"""
    cut = cut_after(pieces)
    assert cut is None if wanted is None else cut == pytest.approx(wanted, abs=0.3)


def test_the_whole_may_take_a_second_longer_for_each_mebibyte() -> None:
    """SAFE-11: by the declared length, or by what has arrived."""
    steady = [(1.0, 64 * KIB)] * 3000
    assert cut_after(steady) == pytest.approx(600 * 16 / 15, abs=1)
    assert cut_after(steady, declared=100 * MIB) == pytest.approx(700, abs=1)
    assert cut_after([(1.0, MIB)] * 3000) is None


def test_what_it_remembers_is_bounded() -> None:
    pace = BodyPace()
    for _ in range(100_000):
        pace.arrived(1, 0.0005)
    assert len(pace._slots) <= 122


def request_of(messages: AsyncIterator[Message], length: int | None = None) -> Request:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, messages.__anext__)


async def dripped(size: int, seconds: float) -> AsyncIterator[Message]:
    while True:
        await asyncio.sleep(seconds)
        yield {"type": "http.request", "body": b"x" * size, "more_body": True}


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("size", "seconds", "length", "wanted"),
    [(1, 1.0, None, 30), (2 * KIB, 1.0, None, 601), (2 * KIB, 1.0, 90 * MIB, 690)],
)
async def test_a_dripping_client_is_given_up(size: int, seconds: float, length: int | None, wanted: float) -> None:
    """SAFE-11: before, every piece restarted the time, and one byte each 29 s held a connection for ever."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(TooSlow):
        async for _ in chunks_of(request_of(dripped(size, seconds), length), 100 * MIB):
            pass
    assert asyncio.get_running_loop().time() - began == pytest.approx(wanted, abs=1.5)


@pytest.mark.virtual_time
async def test_time_in_which_the_gateway_does_not_read_is_not_the_clients() -> None:
    """SAFE-11"""
    taken = 0
    async for piece in chunks_of(request_of(dripped(31 * KIB, 29.0)), MIB):
        taken += len(piece)
        await asyncio.sleep(300.0)
        if taken >= 310 * KIB:
            break
    assert taken == 310 * KIB
