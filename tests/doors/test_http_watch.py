"""`GET /runs/{run_id}/watch` over real sockets: the frames, their order, and every way a stream ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
import uuid
from typing import Any

import pytest

from pyoco_server.actions.watch import RunVersion, Watch
from pyoco_server.core.flow_moves import beat, conclude
from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import to_snapshot
from pyoco_server.doors.http import watch as door
from pyoco_server.doors.http.shown import shown_run
from pyoco_server.ports.runs.port import Stored
from support.event_streams import watching
from support.gateways import PROGRESS, Gateway, claimed, stored, submit
from support.waiting import eventually
from support.watch_servers import (
    beating,
    calm,
    change,
    first,
    gateway,
    port,
    report,
    server,
    server_of_module,
    state_of,
)

__all__ = ["calm", "gateway", "port", "server", "server_of_module"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def end(gateway: Gateway, run_id: str) -> Stored:
    return await change(gateway, run_id, lambda run: conclude(run, Completed(progress=PROGRESS), time.time()))


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
            assert sum(isinstance(each, RunVersion) for each in gc.get_objects()) <= 3
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
        await eventually(lambda: gc.collect() >= 0 and not any(door._DATA))  # kept no longer than it is needed

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
