"""The connection to NATS is up, but no changes arrive: lists must not show outdated states as current."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from pyoco_server.actions.watch import Watch, Watching, watch
from pyoco_server.core.run import Caller
from pyoco_server.doors.http.state import State
from pyoco_server.loops import feed
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.resources import resources_of
from support.gateways import Gateway, claimed, error, submit
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time

LISTS = "/runs"
LETTERS = "/dlq"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two heartbeats and a half: so that the tests need not wait for five."""
    monkeypatch.setattr(feed, "SILENCE_SECONDS", 2.5)
    monkeypatch.setattr(feed, "_AGAIN_SECONDS", 0.1)


def state_of(gateway: Gateway) -> State:
    state: State = gateway.app.state.gateway
    return state


@contextlib.asynccontextmanager
async def dead_feed(gateway: Gateway, link: Link, stream: str) -> AsyncIterator[None]:
    """The feed of this stream has lost its consumer, and JetStream refuses to make another one."""
    own: Any = gateway.backend.runs
    real = own._link.api

    async def api(subject: str, *args: Any, **more: Any) -> Any:
        if subject.startswith(f"CONSUMER.CREATE.{stream}."):
            raise Rejected(10026, "maximum consumers limit reached")
        return await real(subject, *args, **more)

    own._link.api = api
    names = (await link.api(f"CONSUMER.NAMES.{stream}", {}, dict[str, Any]))["consumers"]
    assert names
    for name in names:
        await link.api(f"CONSUMER.DELETE.{stream}.{name}", {}, dict[str, Any])
    try:
        yield
    finally:
        own._link.api = real


def runs_stream(gateway: Gateway) -> str:
    return f"KV_{gateway.config.runs_kv_bucket}"


async def answers(gateway: Gateway, path: str, status: int) -> httpx.Response:
    found: list[httpx.Response] = []

    async def is_so() -> bool:
        found.append(await gateway.client.get(path))
        return found[-1].status_code == status

    await eventually(is_so)
    return found[-1]


async def lists(gateway: Gateway, run_ids: list[str]) -> None:
    """These runs are shown, and no others."""

    async def are_these() -> bool:
        answer = await gateway.client.get(LISTS)
        return answer.status_code == 200 and {run["run_id"] for run in answer.json()} == set(run_ids)

    await eventually(are_these)


@pytest.mark.usefixtures("impatient_gateways")
@pytest.mark.parametrize("path", [LISTS, LETTERS])
async def test_a_silent_feed_makes_lists_unavailable_until_it_is_heard_again(
    gateway: Gateway, link: Link, path: str
) -> None:
    stream = runs_stream(gateway) if path == LISTS else gateway.config.dlq_stream
    await answers(gateway, path, 200)
    async with dead_feed(gateway, link, stream):
        answer = await answers(gateway, path, 503)
        assert gateway.backend.is_up()
        assert answer.json() == error(3, "nats unavailable")
        assert (await gateway.client.get("/metrics")).status_code == 503
    await answers(gateway, path, 200)
    await answers(gateway, "/metrics", 200)


async def test_ready_tells_that_the_index_is_not_true(gateway: Gateway, link: Link) -> None:
    await answers(gateway, "/ready", 200)
    async with dead_feed(gateway, link, runs_stream(gateway)):
        facts = (await answers(gateway, "/ready", 503)).json()
        assert (facts["nats"], facts["index"]) == (True, False)
    await answers(gateway, "/ready", 200)


async def test_a_quiet_feed_is_not_a_silent_one(gateway: Gateway) -> None:
    """Heartbeats are enough, for longer than the silence that counts"""
    await answers(gateway, LISTS, 200)
    found = set()
    for _ in range(40):
        found.add((await gateway.client.get(LISTS)).status_code)
        found.add((await gateway.client.get("/dlq")).status_code)
        await asyncio.sleep(0.1)
    assert found == {200}


@pytest.mark.usefixtures("impatient_gateways")
async def test_a_consumer_that_is_lost_and_made_anew_is_no_silence(
    gateway: Gateway, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is wider than what the feed needs to notice and to mend it."""
    monkeypatch.undo()
    await answers(gateway, LISTS, 200)
    async with dead_feed(gateway, link, runs_stream(gateway)):
        """Only for a moment."""
    found = set()
    for _ in range(60):
        found.add((await gateway.client.get(LISTS)).status_code)
        await asyncio.sleep(0.1)
    assert found == {200}
    await lists(gateway, [await submit(gateway)])


@pytest.mark.usefixtures("impatient_gateways")
async def test_a_list_without_the_gateways_own_last_write_is_no_answer(
    gateway: Gateway, link: Link, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read your writes, or be told that it cannot be: long before the silence is noticed."""
    monkeypatch.setattr(feed, "SILENCE_SECONDS", 600.0)
    await answers(gateway, LISTS, 200)
    async with dead_feed(gateway, link, runs_stream(gateway)):
        run_id = await submit(gateway)
        answer = await gateway.client.get(LISTS)
        assert (answer.status_code, answer.json()) == (503, error(3, "nats unavailable"))
        assert "lists do not show what was written last" in caplog.text
    await lists(gateway, [run_id])


@pytest.mark.usefixtures("impatient_gateways")
async def test_a_bucket_made_anew_is_listed_though_its_revisions_are_small(gateway: Gateway, link: Link) -> None:
    """What was written to the old one is waited for once, and then forgotten."""
    await lists(gateway, [await submit(gateway) for _ in range(5)])
    await link.api(f"STREAM.DELETE.{runs_stream(gateway)}", {}, dict[str, Any])
    await ensure(link, resources_of(gateway.config))

    await lists(gateway, [])
    await lists(gateway, [await submit(gateway)])


async def test_a_watcher_is_told_the_truth_by_the_leader(gateway: Gateway, link: Link) -> None:
    state = state_of(gateway)
    run_id = await submit(gateway)
    await eventually(lambda: state.hub.is_current)
    watching = await watch(gateway.backend, Caller(), state.hub, Watch(run_id=run_id, heartbeat_seconds=0.3))
    assert isinstance(watching, Watching)
    first = await watching.next()
    assert first is not None
    async with dead_feed(gateway, link, runs_stream(gateway)):
        await eventually(lambda: not state.hub.is_current)
        await claimed(gateway, run_id)
        async with asyncio.timeout(120):
            while (event := await watching.next()) is not None and event.kind != "snapshot":
                """A heartbeat that was due."""
        assert event is not None
        assert event.version.stored.run.status == "RUNNING"
    await eventually(lambda: state.hub.is_current)
    watching.close()


async def test_a_watch_ends_when_the_leader_cannot_be_asked_either(
    gateway: Gateway, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-128"""
    state = state_of(gateway)
    run_id = await submit(gateway)
    await eventually(lambda: state.hub.is_current)
    watching = await watch(gateway.backend, Caller(), state.hub, Watch(run_id=run_id, heartbeat_seconds=0.3))
    assert isinstance(watching, Watching)
    own: Any = gateway.backend.runs
    monkeypatch.setattr(own._link, "patience", type(own._link.patience)(0.2, 0.2, 0.2))
    async with dead_feed(gateway, link, runs_stream(gateway)):
        await link.api(f"STREAM.DELETE.{runs_stream(gateway)}", {}, dict[str, Any])
        async with asyncio.timeout(120):
            while await watching.next() is not None:
                """What was on its way."""
    watching.close()
