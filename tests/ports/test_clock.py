"""The store's clock: what it makes of an answer, and that it asks the store."""

from __future__ import annotations

import time

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.nats.clock import StoreClock, open_clock
from pyoco_server.ports.nats.link import Link


def clock_with_offset(link: Link, offset: float) -> StoreClock:
    clock = StoreClock(link, "KV_any")
    clock._offset = offset
    return clock


@pytest.mark.parametrize(
    ("believed", "told", "asked", "answered", "then"),
    [
        pytest.param(1000.0, 1010.5, 10.0, 11.0, 1000.0, id="it fits: it stays"),
        pytest.param(1000.0, 1500.0, 10.0, 900.0, 1000.0, id="a slow answer makes nothing worse"),
        pytest.param(1000.0, 4610.5, 10.0, 11.0, 4599.5, id="an hour behind: forwards, no further than is certain"),
        pytest.param(1000.0, -2589.5, 10.0, 11.0, -2599.5, id="an hour ahead: backwards, no further than is certain"),
    ],
)
async def test_it_moves_only_as_far_as_an_answer_makes_it(
    link: Link, believed: float, told: float, asked: float, answered: float, then: float
) -> None:
    """FLOW-209"""
    clock = clock_with_offset(link, believed)
    clock.hear(told, asked, answered)
    assert clock._offset == pytest.approx(then)


async def test_whoever_s_clock_is_wrong_goes_by_the_store_s(
    link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FLOW-209: a machine that is an hour ahead or behind, or that is set while we run"""
    real = time.time
    for wrong in (3600.0, -3600.0):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: real() + wrong)
        async with open_clock(link, f"KV_{prepared.runs_kv_bucket}") as clock:
            assert clock() == pytest.approx(real(), abs=20.0)
            monkeypatch.setattr(time, "time", lambda: real() + 1e6)
            assert clock() == pytest.approx(real(), abs=20.0)
    assert sum("clock differs" in record.message for record in caplog.records) == 2


async def test_it_is_nearly_the_machine_s_own_where_that_is_right(link: Link, prepared: NatsBackendConfig) -> None:
    async with open_clock(link, f"KV_{prepared.runs_kv_bucket}") as clock:
        assert clock() == pytest.approx(time.time(), abs=5.0)
        moments = [clock() for _ in range(100)]
        assert moments == sorted(moments)
