"""Bad keys from one address are answered slower and slower, without an effect on other addresses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from pyoco_server.doors.http import slowdown
from pyoco_server.doors.http.slowdown import Slowdown, neighbourhood
from pyoco_server.errors import RateLimited


@dataclass
class Time:
    """A clock that moves only by sleeping, or by the test."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@dataclass
class Held:
    """Sleeps end when the test says so."""

    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def sleep(self, _: float) -> None:
        await self.release.wait()


async def waits(slow: Slowdown, time: Time, host: str | None, count: int) -> list[float]:
    """How long each answer was held back."""
    found = []
    for _ in range(count):
        time.slept.clear()
        await slow.refused(host)
        found.append(sum(time.slept))
    return found


async def test_ten_are_answered_at_once_and_further_ones_later_and_later() -> None:
    time = Time()
    slow = Slowdown(time, time.sleep)
    assert await waits(slow, time, "10.0.0.1", 10) == [0.0] * 10
    assert await waits(slow, time, "10.0.0.1", 8) == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert await waits(slow, time, "10.0.0.1", 500) == [2.0] * 500


async def test_another_address_is_not_slowed() -> None:
    time = Time()
    slow = Slowdown(time, time.sleep)
    await waits(slow, time, "10.0.0.1", 50)
    assert await waits(slow, time, "10.0.0.2", 10) == [0.0] * 10


async def test_a_minute_forgives_ten_and_an_end_is_always_in_sight() -> None:
    time = Time()
    slow = Slowdown(time, time.sleep)
    await waits(slow, time, "a", 10)
    time.now += 60
    assert await waits(slow, time, "a", 11) == [0.0] * 10 + [0.1]
    await waits(slow, time, "a", 10_000)
    time.now += 6  # one of them is forgiven: the next makes it as many again
    assert await waits(slow, time, "a", 1) == [2.0]
    time.now += 96
    assert await waits(slow, time, "a", 10) == [0.0] * 10


async def test_who_sends_one_now_and_then_never_waits() -> None:
    time = Time()
    slow = Slowdown(time, time.sleep)
    for _ in range(100):
        time.now += 6
        assert await waits(slow, time, "a", 1) == [0.0]


async def test_at_most_eight_of_one_address_wait_and_the_ninth_is_told_to_come_back() -> None:
    held = Held()
    slow = Slowdown(lambda: 1000.0, held.sleep)
    for host in ["10.0.0.1", None] * 10:
        await slow.refused(host)
    waiting = [asyncio.create_task(slow.refused("10.0.0.1")) for _ in range(8)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    for _ in range(3):
        with pytest.raises(RateLimited) as raised:
            await slow.refused("10.0.0.1")
        assert raised.value.retry_after_seconds == 2.0
    other = asyncio.create_task(slow.refused("a.b"))  # all without an address are one, and it has room
    await asyncio.sleep(0)
    assert not other.done()
    held.release.set()
    await asyncio.gather(*waiting, other)
    await slow.refused("10.0.0.1")  # there is room again


async def test_all_together_have_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowdown, "_WAITING_ALL_MAX", 20)
    held = Held()
    slow = Slowdown(lambda: 1000.0, held.sleep)
    waiting = []
    for n in range(20):
        for _ in range(10):
            await slow.refused(f"10.0.0.{n}")
        waiting.append(asyncio.create_task(slow.refused(f"10.0.0.{n}")))
        await asyncio.sleep(0)
    await slow.refused("10.0.1.1")  # who need not wait is answered as ever
    with pytest.raises(RateLimited):
        await slow.refused("10.0.0.1")
    held.release.set()
    await asyncio.gather(*waiting)


async def test_who_leaves_while_waiting_makes_room() -> None:
    held = Held()
    slow = Slowdown(lambda: 1000.0, held.sleep)
    for _ in range(10):
        await slow.refused("10.0.0.1")
    for _ in range(100):
        waiting = asyncio.create_task(slow.refused("10.0.0.1"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
    assert (slow._waiting, slow._addresses["10.0.0.1"].waiting) == (0, 0)


async def test_addresses_are_bounded_and_the_one_not_seen_for_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowdown, "_ADDRESSES_MAX", 100)
    time = Time()
    slow = Slowdown(time, time.sleep)
    await waits(slow, time, "10.0.0.1", 10)
    for n in range(1000):
        await slow.refused(f"10.1.{n // 250}.{n % 250}")
        if n % 50 == 0:
            await slow.refused("10.0.0.1")
    assert len(slow._addresses) == 100
    assert await waits(slow, time, "10.0.0.1", 1) == [2.0]
    for n in range(100):
        await slow.refused(f"10.2.0.{n}")
    assert await waits(slow, time, "10.0.0.1", 1) == [0.0]


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "20010db800010002::/64"),
        ("2001:db8:1:2:ffff::", "20010db800010002::/64"),
        ("2001:db8:1:3::", "20010db800010003::/64"),
        ("fe80::1%eth0", "fe80000000000000::/64"),
        ("::1", "0::/64"),
        (None, ""),
        ("", ""),
        ("testclient", ""),
        ("x" * 10_000, ""),
    ],
)
def test_who_is_counted_together(host: str | None, name: str) -> None:
    assert neighbourhood(host) == name
