"""How `GET /runs/{run_id}/watch` ends: refusals, expired keys, shutdown, outages and killed processes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from pyoco_server.core.api_key import make_key
from pyoco_server.core.flow_moves import ask_cancel
from pyoco_server.doors.cli.gateway import _Server
from pyoco_server.ports.nats.link import Link
from support.doors_support import check_refusal
from support.event_streams import Stream, watching
from support.gateways import Gateway, claimed, environment, error, fresh_gateway, open_gateway, submit
from support.servers import NatsServer, config_for
from support.waiting import eventually
from support.warm_processes import begun
from support.watch_servers import (
    beating,
    calm,
    change,
    first,
    gateway,
    port,
    report,
    served,
    server,
    server_of_module,
    state_of,
)

__all__ = ["calm", "gateway", "port", "server", "server_of_module"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


class OwnServer:
    """A server of each test's own, before the gateway that the class has for it."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def server(self, gateway: Gateway) -> AsyncIterator[_Server]:
        async with served(gateway) as server:
            yield server


async def has_ended(stream: Stream) -> bool:
    """In order, and without another version but heartbeats."""
    return {event.name for event in await stream.rest(120)} <= {"heartbeat"}


class TestRefusals:
    async def test_an_unknown_run_is_not_found(self, gateway: Gateway) -> None:
        """FLOW-126"""
        for run_id in (str(uuid.uuid4()), "nonsense", "x" * 1000):
            answer = await gateway.client.get(f"/runs/{run_id}/watch")
            assert (answer.status_code, answer.json()) == (404, error(5, "run not found"))

    BAD = (
        ("since=", ["since"]),
        ("since=x", ["since"]),
        ("since=nan", ["since"]),
        ("since=inf", ["since"]),
        ("since=-Infinity", ["since"]),
        ("since=1e999", ["since"]),
        ("since=1_0", ["since"]),
        ("since=%201", ["since"]),
        ("since=0x1", ["since"]),
        ("since=" + "9" * 400, ["since"]),
        ("timeout_sec=", ["timeout_sec"]),
        ("timeout_sec=0", ["timeout_sec"]),
        ("timeout_sec=601", ["timeout_sec"]),
        ("timeout_sec=-1", ["timeout_sec"]),
        ("timeout_sec=1.5", ["timeout_sec"]),
        ("timeout_sec=1e2", ["timeout_sec"]),
        ("timeout_sec=" + "9" * 5000, ["timeout_sec"]),
        ("timeout_sec=%D9%A3", ["timeout_sec"]),
        ("since=x&timeout_sec=y", ["since", "timeout_sec"]),
    )

    async def test_a_bad_query_is_told(self, gateway: Gateway) -> None:
        """FLOW-127; it does not matter whether there is such a run"""
        for query, names in self.BAD:
            problems = check_refusal(await gateway.client.get(f"/runs/{uuid.uuid4()}/watch?{query}"))
            assert [problem["loc"] for problem in problems] == [["query", name] for name in names], query

    async def test_a_good_query_is_taken(self, gateway: Gateway, port: int) -> None:
        """FLOW-118, FLOW-119"""
        run_id = await submit(gateway)
        for query in ("since=-1.5", "since=1e3", "since=0", "since=1.", "timeout_sec=1&since=5e-3", "timeout_sec=600"):
            async with watching(port, run_id, f"?{query}") as stream:
                assert (await first(stream)).status == "PENDING", query

    async def test_there_is_room_for_so_many(
        self, gateway: Gateway, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_id = await submit(gateway)
        monkeypatch.setattr(state_of(gateway).hub, "_followers_max", 1)
        async with watching(port, run_id) as stream:
            await first(stream)
            answer = await gateway.client.get(f"/runs/{run_id}/watch")
            assert (answer.status_code, answer.json()) == (503, error(30, "too many watchers"))
            assert answer.headers["retry-after"] == "1"
        await eventually(lambda: state_of(gateway).hub.count == 0)
        async with watching(port, run_id) as stream:
            assert stream.status == 200


class TestKeys(OwnServer):
    @pytest_asyncio.fixture(loop_scope="module")
    async def gateway(self, link_of_module: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
        async with fresh_gateway(link_of_module, nats_url, tmp_path, http_auth_mode="api_key") as gateway:
            yield gateway

    async def _key(self, gateway: Gateway, tenant: str) -> str:
        plain, record = make_key(tenant, "", time.time(), secrets.token_hex, secrets.token_urlsafe)
        assert await gateway.backend.keys.add(record)
        return plain

    async def _submit(self, gateway: Gateway, key: str) -> str:
        answer = await gateway.client.post("/runs", json={"flow_name": "f"}, headers={"X-API-Key": key})
        return str(answer.json()["run_id"])

    async def test_only_one_s_own_runs_can_be_watched(self, gateway: Gateway, port: int) -> None:
        """FLOW-45, FLOW-126, FLOW-273"""
        ours, theirs = await self._key(gateway, "a"), await self._key(gateway, "b")
        run_id = await self._submit(gateway, ours)
        async with watching(port, run_id, X_API_Key=ours) as stream:
            assert (await first(stream)).status == "PENDING"
        for headers, status, body in (
            ({"X-API-Key": theirs}, 404, error(5, "run not found")),
            ({}, 401, error(14, "api key required")),
            ({"X-API-Key": "wrong"}, 403, error(15, "api key invalid")),
        ):
            answer = await gateway.client.get(f"/runs/{run_id}/watch", headers=headers)
            assert (answer.status_code, answer.json()) == (status, body)

    async def test_a_revoked_key_ends_its_streams(self, gateway: Gateway, port: int) -> None:
        """A key that was revoked shows nothing more, also where a door had been opened before."""
        key = await self._key(gateway, "a")
        run_id = await self._submit(gateway, key)
        async with watching(port, run_id, X_API_Key=key) as stream:
            await first(stream)
            await gateway.backend.keys.revoke(key.split("_")[1], time.time())
            await claimed(gateway, run_id)
            assert await stream.next() is None


class TestEnds:
    async def test_it_ends_after_its_time(self, gateway: Gateway, port: int) -> None:
        """FLOW-119"""
        began = time.monotonic()
        async with watching(port, await submit(gateway), "?timeout_sec=1") as stream:
            assert [event.name for event in await stream.rest()] == ["snapshot"]
        assert 0.9 < time.monotonic() - began < 150  # far from the five minutes that are usual

    async def test_it_ends_when_the_run_is_no_longer_stored(self, gateway: Gateway, port: int) -> None:
        """FLOW-128"""
        run_id = await submit(gateway)
        async with watching(port, run_id) as stream:
            event = await first(stream)
            assert await gateway.backend.runs.withdraw(run_id, event.id)
            assert await stream.next() is None
        assert (await gateway.client.get(f"/runs/{run_id}/watch")).status_code == 404

    @pytest.mark.parametrize("how", ["leave", "reset"])
    async def test_a_client_that_leaves_is_forgotten_at_once(self, gateway: Gateway, port: int, how: str) -> None:
        async with watching(port, await submit(gateway)) as stream:
            await first(stream)
            assert state_of(gateway).hub.count == 1
            getattr(stream, how)()
            await eventually(lambda: state_of(gateway).hub.count == 0)
        await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "EventStream"])

    @pytest.mark.parametrize("how", ["leave", "reset"])
    async def test_a_client_that_read_nothing_may_leave(
        self, gateway: Gateway, server: _Server, port: int, how: str
    ) -> None:
        """Long before the stream's own time it is gone, with all that it did not fetch."""
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        async with watching(port, run_id, "?include=records&timeout_sec=600", receive_bytes=4096) as stream:
            for n in range(100):  # more than the kernel takes
                await report(gateway, run_id, str(n), output="x" * 200_000)
            getattr(stream, how)()
            await eventually(lambda: state_of(gateway).hub.count == 0)
            await eventually(lambda: not server.server_state.connections)

    async def test_a_client_that_reads_nothing_is_cut_off(self, gateway: Gateway, server: _Server, port: int) -> None:
        """By the stream's own time it is gone, with all that it did not fetch."""
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        query = "?include=records&timeout_sec=5"  # far longer than it takes to send more than the kernel takes
        async with watching(port, run_id, query, receive_bytes=4096) as stream:
            for n in range(100):
                await report(gateway, run_id, str(n), output="x" * 200_000)
            await eventually(lambda: state_of(gateway).hub.count == 0)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await stream.rest()
            await eventually(lambda: not server.server_state.connections)

    async def test_a_client_that_had_more_to_ask_is_missed_at_the_next_heartbeat(
        self, gateway: Gateway, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """uvicorn tells only the last of several requests on a connection that it is gone."""
        beating(monkeypatch, 0.2)
        async with watching(port, await submit(gateway)) as stream:
            await first(stream)
            stream._writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await first(stream)
            stream.reset()
            await eventually(lambda: state_of(gateway).hub.count == 0)

    async def test_a_body_that_nobody_asked_for_is_passed_over(self, gateway: Gateway, port: int) -> None:
        run_id = await submit(gateway)
        async with watching(port, run_id, Content_Length="100000") as stream:
            await first(stream)
            stream._writer.write(b"x" * 100_000)
            await claimed(gateway, run_id)
            assert (await first(stream)).status == "RUNNING"


class TestStops(OwnServer):
    @pytest_asyncio.fixture(loop_scope="module")
    async def gateway(self, link_of_module: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
        async with fresh_gateway(link_of_module, nats_url, tmp_path) as gateway:
            yield gateway

    async def test_a_stopping_gateway_ends_every_stream_in_order(self, gateway: Gateway, port: int) -> None:
        run_id = await submit(gateway)
        async with watching(port, run_id) as one, watching(port, run_id, "?include=all") as two:
            await first(one)
            await first(two)
            state_of(gateway).hub.close()
            assert [await one.next(), await two.next()] == [None, None]
        async with watching(port, run_id) as late:
            assert len(await late.rest()) == 1

    async def test_a_stopping_gateway_does_not_wait_for_who_does_not_read(
        self, gateway: Gateway, server: _Server, port: int
    ) -> None:
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        async with watching(port, run_id, "?include=records", receive_bytes=4096):
            for n in range(100):
                await report(gateway, run_id, str(n), output="x" * 200_000)
            state_of(gateway).hub.close()
            await eventually(lambda: state_of(gateway).hub.count == 0)
            await eventually(lambda: not server.server_state.connections)


class TestOutage(OwnServer):
    @pytest_asyncio.fixture(loop_scope="module")
    async def gateway(self, own_nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Gateway]:
        async with open_gateway(config_for(own_nats_server.url, data_dir=str(tmp_path))) as gateway:
            yield gateway

    async def test_an_outage_ends_the_stream_and_afterwards_one_may_watch_again(
        self, own_nats_server: NatsServer, gateway: Gateway, port: int
    ) -> None:
        """FLOW-126, FLOW-128, FLOW-558"""
        run_id = await submit(gateway)
        async with watching(port, run_id) as stream:
            seen = await first(stream)
            await asyncio.to_thread(own_nats_server.kill)
            assert await stream.next() is None
        answer = await gateway.client.get(f"/runs/{run_id}/watch")
        assert (answer.status_code, answer.json()) == (503, error(3, "nats unavailable"))
        await asyncio.to_thread(own_nats_server.start)
        await eventually(gateway.backend.is_up)
        async with watching(port, run_id, f"?since={seen.snapshot['updated_at']!r}") as stream:
            await claimed(gateway, run_id)
            assert (await first(stream)).status == "RUNNING"

    async def test_an_outage_too_short_to_be_seen_loses_nothing(
        self, own_nats_server: NatsServer, gateway: Gateway, port: int
    ) -> None:
        """The feed resumes by itself and tells the newest state of whatever changed."""
        run_id = await submit(gateway)
        await state_of(gateway).lookout.stop()
        async with watching(port, run_id) as stream:
            await first(stream)
            await asyncio.to_thread(own_nats_server.restart)
            await eventually(gateway.backend.is_up)
            await change(gateway, run_id, lambda run: ask_cancel(run, "while the feed was away", time.time()))
            event = await stream.next()
            assert event is not None
            assert event.snapshot["cancel_reason"] == "while the feed was away"


class TestProcess:
    """SIGTERM while streams are open: they end at once, whole, and the process does not wait for them."""

    COMMANDS = (
        ("pyoco_server.doors.cli.server", "gateway"),
        ("uvicorn", "pyoco_server.http_api:create_app", "--factory"),
    )

    @pytest.mark.parametrize("command", COMMANDS, ids=["pyoco-server gateway", "uvicorn"])
    async def test_a_signal_ends_open_streams_at_once(
        self, own_nats_server: NatsServer, tmp_path: Path, unused_port: int, command: tuple[str, ...]
    ) -> None:
        config = config_for(own_nats_server.url, data_dir=str(tmp_path))
        arguments = [sys.executable, "-m", *command, "--port", str(unused_port)]
        nothing = subprocess.DEVNULL
        process = begun(arguments, env=environment(config), stdout=nothing, stderr=nothing)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_port}", timeout=60) as client:

                async def is_ready() -> bool:
                    with contextlib.suppress(httpx.TransportError):
                        return (await client.get("/ready")).status_code == 200
                    return False

                await eventually(is_ready, seconds=30)
                run_id = (await client.post("/runs", json={"flow_name": "f"})).json()["run_id"]
            async with watching(unused_port, run_id) as one, watching(unused_port, run_id) as two:
                await first(one)
                await first(two)
                began = time.monotonic()
                process.terminate()
                assert await has_ended(one)
                assert await has_ended(two)
            await asyncio.to_thread(process.wait, 120)
            assert time.monotonic() - began < 150  # far from the five minutes that a stream may last
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)
