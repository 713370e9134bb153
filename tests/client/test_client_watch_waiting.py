"""Waiting for a run with a client while connections break."""

from __future__ import annotations

import asyncio
import math
import re

import httpx
import pytest

from pyoco_server.client import resuming
from support.client_twins import MakeClient
from support.clocked_clients import MakeClocked
from support.scripted_gateway import Asked, Turn, answer, cut, event, hang, scripted, stream
from support.watched_runs import AWAY, COMPLETED, CROWDED, SNAPSHOT, seen

pytestmark = pytest.mark.usefixtures("hurried")


class TestWaiting:
    async def test_a_run_is_waited_for_in_a_stream(self, make: MakeClient) -> None:
        """FLOW-416: not by asking again and again"""
        turns = [answer(SNAPSHOT), stream(event(3, "RUNNING"), event(4, "COMPLETED"))]
        async with scripted(*turns) as server, make(server.url) as client:
            assert (await client.wait_run("r"))["status"] == "COMPLETED"
        assert [asked.path.partition("?")[0] for asked in server.asked] == ["/runs/r", "/runs/r/watch"]

    async def test_a_run_that_has_ended_takes_one_look(self, make: MakeClient) -> None:
        async with scripted(answer(COMPLETED)) as server, make(server.url) as client:
            assert await client.wait_run("r", 0) == COMPLETED
        assert len(server.asked) == 1

    async def test_without_room_for_a_watch_it_looks_again_and_again(self, make: MakeClient) -> None:
        turns = [answer(SNAPSHOT), answer(CROWDED, 503, retry_after="1"), answer(SNAPSHOT), answer(COMPLETED)]
        async with scripted(*turns) as server, make(server.url) as client:
            assert await client.wait_run("r") == COMPLETED
        assert [asked.path for asked in server.asked][2:] == ["/runs/r", "/runs/r"]

    @pytest.mark.parametrize(
        "turn", [answer(AWAY, 502), cut, answer(b"<html>", content_type="text/html"), stream(then="hang")]
    )
    async def test_where_no_stream_gets_through_it_looks_again_and_again(
        self, make: MakeClient, turn: Turn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A proxy, for example, that keeps an answer until it is complete"""
        monkeypatch.setattr(resuming, "SILENCE_SECONDS", 0.1)
        async with scripted() as server, make(server.url, retry_seconds=0.1) as client:

            async def by_path(asked: Asked, writer: asyncio.StreamWriter) -> None:
                looks = [each for each in server.asked if not each.path.startswith("/runs/r/watch")]
                look = answer(COMPLETED if len(looks) > 2 else SNAPSHOT)
                await (look if asked in looks else turn)(asked, writer)

            server.turns = [by_path] * 20
            assert await client.wait_run("r") == COMPLETED

    async def test_a_watch_waits_for_room(self, make: MakeClient) -> None:
        turns = [answer(CROWDED, 503, retry_after="0"), stream(event(3, "COMPLETED"))]
        async with scripted(*turns) as server, make(server.url) as client:
            assert await seen(client) == [("snapshot", "COMPLETED")]

    async def test_an_outage_is_waited_out(self, make: MakeClient) -> None:
        turns = [answer(SNAPSHOT), answer(AWAY, 503, retry_after="0"), cut, stream(event(3, "FAILED"))]
        async with scripted(*turns) as server, make(server.url) as client:
            assert (await client.wait_run("r"))["status"] == "FAILED"

    async def test_time_runs_out_in_the_middle_of_a_stream(self, clocked: MakeClocked) -> None:
        """FLOW-416"""
        turns = [answer(SNAPSHOT), stream(event(3, "CANCELLING"), then="hang"), *[answer(SNAPSHOT)] * 20]
        async with clocked(*turns) as (server, client):
            with pytest.raises(TimeoutError, match=r"still RUNNING after 0.4 s"):
                await client.wait_run("r", 0.4)
            assert server.now == pytest.approx(0.4)
            assert server.open_count == 0

    @pytest.mark.parametrize("retries", [0, 3])
    async def test_a_look_that_hangs_costs_no_more_than_the_time_there_is(
        self, clocked: MakeClocked, retries: int
    ) -> None:
        """FLOW-416: neither the first look nor a later one, and never a ReadTimeout"""
        silent: list[Turn] = [hang] * 9
        scripts = ((silent, "could not be read within"), ([answer(SNAPSHOT), answer(CROWDED, 503), *silent], "RUNNING"))
        for turns, told in scripts:
            async with clocked(*turns, retries=retries) as (server, client):
                with pytest.raises(TimeoutError, match=f"{told}.* 0.4 s"):
                    await client.wait_run("r", 0.4)
                assert 0.4 <= server.now <= 0.5

    async def test_an_outage_until_the_end_is_a_timeout(self, clocked: MakeClocked) -> None:
        """FLOW-416"""
        async with clocked(answer(SNAPSHOT), answer(CROWDED, 503), *[cut] * 99) as (server, client):
            with pytest.raises(TimeoutError, match=r"still RUNNING after 0.4 s, as far as is known: \w+"):
                await client.wait_run("r", 0.4, patience_sec=math.inf)
            assert server.now <= 0.4

    async def test_a_server_that_asks_for_a_day_gets_no_more_than_the_time_there_is(self, make: MakeClient) -> None:
        """FLOW-416"""
        turns = [answer(SNAPSHOT), *[answer(CROWDED, 503, retry_after="86400")] * 9]
        async with scripted(*turns) as server, make(server.url) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.wait_run("r", 0.4, patience_sec=math.inf), 120)

    async def test_patience_is_for_looks_too(self, make: MakeClient) -> None:
        turns = [answer(SNAPSHOT), answer(CROWDED, 503), cut, cut, answer(AWAY, 503), answer(COMPLETED)]
        async with scripted(*turns) as server, make(server.url, retries=0, retry_seconds=0) as client:
            assert await client.wait_run("r", patience_sec=math.inf) == COMPLETED

    async def test_a_server_that_never_was_there_is_told_soon(self, make: MakeClient, unused_port: int) -> None:
        async with make(f"http://127.0.0.1:{unused_port}", retries=1) as client:
            with pytest.raises(httpx.ConnectError):
                await asyncio.wait_for(client.wait_run("r", patience_sec=math.inf), 120)

    async def test_a_stream_is_tried_once_more_after_a_while(self, clocked: MakeClocked) -> None:
        """A client that lost it in an outage does not poll for the rest of the day"""
        listened = 0

        async def by_path(asked: Asked, writer: asyncio.StreamWriter) -> None:
            nonlocal listened
            if not asked.path.startswith("/runs/r/watch"):
                return await answer(SNAPSHOT)(asked, writer)
            listened += 1
            return await (cut if listened < 5 else stream(event(4, "COMPLETED")))(asked, writer)

        async with clocked(*[by_path] * 999, retry_seconds=0.2) as (server, client):
            assert (await client.wait_run("r", 3600))["status"] == "COMPLETED"
        told = "".join("w" if "/watch" in asked.path else "." for asked in server.asked)
        assert re.fullmatch(r"\.ww+(\.+w)+", told), "several tries the first time, one each time afterwards"

    @pytest.mark.parametrize("turn", [hang, stream(event(3, "RUNNING"), then="hang")])
    async def test_the_last_thing_is_a_look(self, clocked: MakeClocked, turn: Turn) -> None:
        """FLOW-416: a stream that tells nothing until time is up hides no end"""
        async with clocked(answer(SNAPSHOT), turn, answer(COMPLETED)) as (server, client):
            assert await client.wait_run("r", 0.5) == COMPLETED
        assert len(server.asked) == 3

    async def test_no_number_is_no_time(self, make: MakeClient) -> None:
        async with scripted() as server, make(server.url) as client:
            with pytest.raises(ValueError, match="not a number"):
                await client.wait_run("r", float("nan"))
            assert server.asked == []

    async def test_a_cancelled_run_is_waited_for(self, make: MakeClient) -> None:
        """FLOW-403, FLOW-416"""
        asked = SNAPSHOT | {"status": "CANCELLING"}
        turns = [answer(asked), answer(asked), stream(event(3, "CANCELLED"))]
        async with scripted(*turns) as server, make(server.url) as client:
            assert (await client.cancel_run("r", wait=True))["status"] == "CANCELLED"
        assert server.asked[0].method == "POST"
