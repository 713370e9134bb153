"""`GET /runs/{run_id}/watch` over real sockets: the frames, their order, and every way a stream ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import secrets
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn

from pyoco_server.actions.watch import Watch, Word
from pyoco_server.core.api_key import make_key
from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.core.run import Run, ask_cancel, beat, conclude
from pyoco_server.core.snapshot import to_snapshot
from pyoco_server.doors.cli.gateway import BoundedHttp, _Server
from pyoco_server.doors.http import watch as door
from pyoco_server.doors.http.shown import shown_run
from pyoco_server.doors.http.state import State
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from support.doors_support import Door, check_refusal
from support.event_streams import Event, Stream, watching
from support.gateways import PROGRESS, Gateway, claimed, environment, error, fresh_gateway, open_gateway, stored, submit
from support.servers import NatsServer, config_for
from support.waiting import eventually
from support.warm_processes import begun

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No heartbeats, unless a test asks for them: a busy machine would hear them between two events."""
    beating(monkeypatch, 600.0)


@contextlib.asynccontextmanager
async def served(gateway: Gateway) -> AsyncIterator[_Server]:
    """The application behind the gateway's own server."""
    settings = uvicorn.Config(
        gateway.app, port=0, http=BoundedHttp, ws="none", lifespan="off", log_config=None, timeout_keep_alive=600
    )
    server = _Server(settings)
    serving = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started)
        yield server
    finally:
        server.should_exit = server.force_exit = True
        await serving


@pytest.fixture
def gateway(whole_module: Door) -> Gateway:
    """One for all tests that leave it as it was: each has runs of its own."""
    return whole_module.gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server_of_module(whole_module: Door) -> AsyncIterator[_Server]:
    async with served(whole_module.gateway) as server:
        yield server


@pytest.fixture
def server(server_of_module: _Server) -> _Server:
    return server_of_module


@pytest_asyncio.fixture(loop_scope="module")
async def port(gateway: Gateway, server: _Server) -> AsyncIterator[int]:
    yield int(server.servers[0].sockets[0].getsockname()[1])
    await eventually(lambda: state_of(gateway).hub.count == 0)  # whoever leaves gives the place back


class OwnServer:
    """A server of each test's own, before the gateway that the class has for it."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def server(self, gateway: Gateway) -> AsyncIterator[_Server]:
        async with served(gateway) as server:
            yield server


def state_of(gateway: Gateway) -> State:
    state: State = gateway.app.state.gateway
    return state


def beating(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Heartbeats of the stream so often."""
    monkeypatch.setattr(door, "Watch", functools.partial(Watch, heartbeat_seconds=seconds))


async def change(gateway: Gateway, run_id: str, how: Callable[[Run], Run]) -> Stored:
    found = await stored(gateway, run_id)
    written = await gateway.backend.runs.replace(how(found.run), found.revision)
    assert isinstance(written, Stored)
    return written


async def report(gateway: Gateway, run_id: str, state: str = "RUNNING", **record: Any) -> Stored:
    progress = Progress(tasks={"a": state}, task_records={"a": {"state": state, **record}})
    return await change(gateway, run_id, lambda run: beat(run, progress, time.time()))


async def end(gateway: Gateway, run_id: str) -> Stored:
    return await change(gateway, run_id, lambda run: conclude(run, Completed(progress=PROGRESS), time.time()))


async def first(stream: Stream) -> Event:
    event = await stream.next()
    assert event is not None
    return event


async def has_ended(stream: Stream) -> bool:
    """In order, and without another word but heartbeats."""
    return {event.name for event in await stream.rest(120)} <= {"heartbeat"}


class TestFrames:
    async def test_the_run_as_it_is_comes_at_once(self, gateway: Gateway, port: int) -> None:
        """FLOW-120 to FLOW-122"""
        run_id = await submit(gateway, params={"x": 1})
        began = time.time()
        async with watching(port, run_id) as stream:
            assert stream.status == 200
            assert stream.headers["content-type"].partition(";")[0] == "text/event-stream"
            assert stream.headers["cache-control"] == "no-cache"
            assert stream.headers["x-accel-buffering"] == "no"
            assert stream.headers["transfer-encoding"] == "chunked"
            event = await first(stream)
            assert (event.name, event.status) == ("snapshot", "PENDING")
            assert event.id == (await stored(gateway, run_id)).revision
            assert event.data["run_id"] == run_id
            assert began - 0.1 <= event.data["ts"] <= time.time()
            assert 1000 <= stream.retry_ms <= 3000

    async def test_a_snapshot_is_what_a_read_shows(self, gateway: Gateway, port: int) -> None:
        """FLOW-117: all of it but what the registry says of the worker"""
        for query in ["", "?include=records", "?include=nonsense", "?include=x&include=all"]:
            run_id = await submit(gateway, params={"text": "ü", "n": [1, 2.5, None]})
            await claimed(gateway, run_id)
            async with watching(port, run_id, query) as stream:
                await first(stream)
                for move in (report, end):
                    await move(gateway, run_id)
                    shown = (await gateway.client.get(f"/runs/{run_id}{query}")).json()
                    for name in ("worker_alive", "worker_heartbeat_at", "worker_tags", "worker_state"):
                        shown.pop(name, None)
                    assert (await first(stream)).snapshot == shown, query
                    assert ("task_records" in shown) == ("records" in query or "all" in query), query

    async def test_every_change_is_told_and_the_end_ends_it(self, gateway: Gateway, port: int) -> None:
        """FLOW-123, FLOW-125, FLOW-558"""
        run_id = await submit(gateway)
        async with watching(port, run_id) as stream:
            seen = [await first(stream)]
            await claimed(gateway, run_id)
            seen.append(await first(stream))
            await report(gateway, run_id)
            seen.append(await first(stream))
            await gateway.client.post(f"/runs/{run_id}/cancel")
            seen.append(await first(stream))
            await end(gateway, run_id)
            seen += await stream.rest()
        assert [event.status for event in seen] == ["PENDING", "RUNNING", "RUNNING", "CANCELLING", "CANCELLED"]
        changes = [event.snapshot["last_change"]["what"] for event in seen]
        assert changes == ["submitted", "started", "started", "cancel_requested", "cancelled"]
        assert {event.name for event in seen} == {"snapshot"}
        ids = [event.id for event in seen]
        assert ids == sorted(set(ids))

    async def test_the_connection_serves_on_after_a_stream(self, gateway: Gateway, port: int) -> None:
        run_id = await submit(gateway)
        async with watching(port, run_id, "?timeout_sec=1") as stream:
            assert len(await stream.rest()) == 1
            stream._writer.write(f"GET /runs/{run_id} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await stream.read_head()
            assert stream.status == 200
            assert json.loads(await stream.body())["status"] == "PENDING"

    async def test_no_text_breaks_a_frame(self, gateway: Gateway, port: int) -> None:
        """FLOW-121: one line of data"""
        for text in ("a\nb", "a\r\nb\r", "\n\ndata: {}\n\n", "\u2028\u2029\x85\x00\x1f", "日本語 🎈"):
            run_id = await submit(gateway, params={text: text})
            async with watching(port, run_id) as stream:
                assert (await first(stream)).snapshot["params"] == {text: text}

    async def test_a_stranger_s_record_is_shown_in_strict_json(self, gateway: Gateway, port: int) -> None:
        """Half a surrogate pair, which UTF-8 cannot hold, and a number that JSON cannot."""
        run_id = await submit(gateway)
        found = await stored(gateway, run_id)
        for text, shown in (('"\\ud800"', "?"), ("NaN", None)):
            snapshot = to_snapshot(found.run) | {"params": {"x": "HERE"}}
            data = json.dumps(snapshot).replace('"HERE"', text).encode()
            found = await stored(gateway, run_id)
            await gateway.backend.runs._bucket.write(run_id, data, found.revision)  # type: ignore[attr-defined]
            async with watching(port, run_id) as stream:
                assert (await first(stream)).snapshot["params"] == {"x": shown}

    async def test_a_head_asks_for_the_head_alone(self, gateway: Gateway, port: int) -> None:
        run_id = await submit(gateway)
        async with watching(port, run_id, method="HEAD") as stream:
            assert stream.status == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
            stream._writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await stream.read_head()
            assert json.loads(await stream.body()) == {"status": "ok"}
        async with watching(port, str(uuid.uuid4()), method="HEAD") as stream:
            assert stream.status == 404


class TestHeartbeats:
    async def test_a_heartbeat_of_the_run_shows_with_the_next_one_of_the_stream(
        self, gateway: Gateway, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-123, FLOW-124"""
        beating(monkeypatch, 0.5)
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        async with watching(port, run_id) as stream:
            await first(stream)
            written = await change(gateway, run_id, lambda run: beat(run, Progress(), time.time() + 5))
            event = await first(stream)
            assert event.name == "heartbeat"
            assert event.id == written.revision
            assert event.snapshot["heartbeat_at"] == written.run.heartbeat_at
            assert (await first(stream)).name == "heartbeat"
            await report(gateway, run_id)
            assert (await first(stream)).name == "snapshot"

    async def test_the_default_is_five_seconds(self) -> None:
        """FLOW-124, FLOW-207"""
        assert Watch(run_id="x").heartbeat_seconds == 5.0


class TestMerging:
    async def test_a_burst_is_merged_and_the_last_one_comes(self, gateway: Gateway, port: int) -> None:
        """FLOW-123"""
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        async with watching(port, run_id) as stream:
            await first(stream)
            for n in range(200):
                await report(gateway, run_id, str(n))
            last = await end(gateway, run_id)
            seen = await stream.rest()
        assert 1 <= len(seen) <= 201
        assert (seen[-1].id, seen[-1].status) == (last.revision, "COMPLETED")
        assert [event.id for event in seen] == sorted({event.id for event in seen})

    async def test_who_does_not_read_gets_the_latest_and_holds_nothing_up(self, gateway: Gateway, port: int) -> None:
        """DESIGN 5.5: hundreds of changes of 100 kB each, and at most a few of them wait for a slow reader"""
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        async with (
            watching(port, run_id, "?include=records", receive_bytes=4096) as slow,
            watching(port, run_id) as quick,
        ):
            await first(quick)
            for n in range(200):
                await report(gateway, run_id, str(n), output="x" * 100_000)
            last = await end(gateway, run_id)
            assert (await quick.rest())[-1].id == last.revision
            gc.collect()
            assert sum(isinstance(each, Word) for each in gc.get_objects()) <= 3
            seen = await slow.rest()
        assert len(seen) < 150  # what the kernel took before it was full, and the last one
        assert (seen[-1].id, seen[-1].status) == (last.revision, "COMPLETED")

    async def test_a_snapshot_is_encoded_once_however_many_watch(
        self, gateway: Gateway, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[str] = []

        def counted(run: Run) -> dict[str, Any]:
            made.append(run.status)
            return shown_run(run)

        monkeypatch.setattr(door, "shown_run", counted)
        run_id = await submit(gateway)
        async with contextlib.AsyncExitStack() as stack:
            queries = ["?include=records", ""] * 20
            streams = [await stack.enter_async_context(watching(port, run_id, query)) for query in queries]
            for stream in streams:
                await first(stream)
            await claimed(gateway, run_id)
            assert {(await first(stream)).status for stream in streams} == {"RUNNING"}
        assert made == ["PENDING"] * 2 + ["RUNNING"] * 2
        await eventually(lambda: gc.collect() >= 0 and not any(door._DATA))  # kept no longer than somebody needs it

    async def test_hundreds_of_watchers_hear_of_a_change(self, gateway: Gateway, port: int) -> None:
        run_id = await submit(gateway)
        async with contextlib.AsyncExitStack() as stack:
            streams = []
            for _ in range(3):
                opened = [stack.enter_async_context(watching(port, run_id)) for _ in range(100)]
                streams += [await each for each in opened]
            for stream in streams:
                await first(stream)
            assert state_of(gateway).hub.count == 300
            written = await claimed(gateway, run_id)
            events = await asyncio.gather(*(first(stream) for stream in streams))
            assert {event.status for event in events} == {written.status}
        await eventually(lambda: state_of(gateway).hub.count == 0)


class TestResume:
    async def test_since_leaves_out_what_is_known(self, gateway: Gateway, port: int) -> None:
        """FLOW-118, FLOW-128, FLOW-558"""
        run_id = await submit(gateway)
        async with watching(port, run_id) as stream:
            seen = (await first(stream)).snapshot["updated_at"]
        async with watching(port, run_id, f"?since={seen!r}") as stream:
            await claimed(gateway, run_id)
            assert (await first(stream)).status == "RUNNING"
        async with watching(port, run_id, f"?since={seen!r}") as stream:
            assert (await first(stream)).status == "RUNNING"
        last = await end(gateway, run_id)
        async with watching(port, run_id, f"?since={last.run.updated_at!r}") as stream:
            assert await stream.rest() == []

    async def test_a_browser_goes_on_where_it_was(self, gateway: Gateway, port: int) -> None:
        run_id = await submit(gateway)
        async with watching(port, run_id) as stream:
            seen = str((await first(stream)).id)
        async with watching(port, run_id, Last_Event_ID=seen) as stream:
            await claimed(gateway, run_id)
            assert (await first(stream)).status == "RUNNING"
        last = await end(gateway, run_id)
        async with watching(port, run_id, Last_Event_ID=seen) as stream:
            assert [event.id for event in await stream.rest()] == [last.revision]

    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    async def test_whoever_has_the_end_is_told_to_stop(self, gateway: Gateway, port: int, method: str) -> None:
        """204 is how an EventSource learns not to come back"""
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        last = await end(gateway, run_id)
        async with watching(port, run_id, method=method, Last_Event_ID=str(last.revision)) as stream:
            assert stream.status == 204
            assert "content-length" not in stream.headers
            stream._writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await stream.read_head()
            assert stream.status == 200

    async def test_an_id_that_is_none_of_ours_is_passed_over(self, gateway: Gateway, port: int) -> None:
        run_id = await submit(gateway)
        for text in ("", "x", "-1", "1.5", "0x10", "٣", "9" * 19, "9" * 5000, "1,2", "18446744073709551615"):
            async with watching(port, run_id, Last_Event_ID=text) as stream:
                assert (await first(stream)).status == "PENDING", text


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
        for seconds in (2, 8, 32):  # a busy machine may need longer until more is sent than the kernel takes
            query = f"?include=records&timeout_sec={seconds}"
            async with watching(port, run_id, query, receive_bytes=4096) as stream:
                for n in range(100):
                    await report(gateway, run_id, str(n), output="x" * 200_000)
                await eventually(lambda: state_of(gateway).hub.count == 0)
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    await stream.rest()
                    continue
                await eventually(lambda: not server.server_state.connections)
                return
        pytest.fail("it got everything")

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
