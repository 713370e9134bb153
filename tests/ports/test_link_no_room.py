"""A store that has no room: told as such, and remembered until something was stored. (ERR-PYOCO-0032)"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import Job
from pyoco_server.errors import NoRoom, NotStored, Unavailable
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link, NoConnection, Patience, Rejected, StreamFull, gave_up, open_link
from pyoco_server.ports.nats.refusals import Refusals
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from pyoco_server.ports.store_state import StoreState
from support.configured_nats import configured_nats
from support.full_disks import jam
from support.servers import NatsServer
from support.waiting import eventually

QUICK = Patience(unanswered_seconds=1.0, answer_seconds=0.4)


def state(link: Link) -> StoreState:
    """Asked anew each time; the type checker takes a property for a constant."""
    return link.store_state


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Link]:
    link = await open_link(url, "tests")
    try:
        yield link
    finally:
        await link.close()


async def make(link: Link, bucket: str) -> Bucket:
    config = {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "max_msgs_per_subject": 1,
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        "num_replicas": 1,
    }
    await link.api(f"STREAM.CREATE.KV_{bucket}", config, dict[str, Any])
    return Bucket(link, bucket)


async def fill(bucket: Bucket) -> None:
    for number in range(50):
        await bucket.write(f"k{number}", bytes(10_000), 0)


async def test_a_server_at_its_limit_has_no_room_and_for_certain_stored_nothing(tmp_path: Path) -> None:
    """10023 is what JetStream says. It heals by itself, and by the first write that is stored the link knows."""
    with configured_nats(tmp_path, jetstream="max_file_store: 100KB") as nats:
        async with opened(nats.url) as link:
            bucket, other = await make(link, "one"), await make(link, "two")
            link.patience = Patience(unanswered_seconds=1.0)
            with pytest.raises(NoRoom, match=r"the store of NATS has no room for KV_one: .*10023") as told:
                await fill(bucket)
            link.patience = Patience()
            assert isinstance(told.value, NotStored)
            assert told.value.number == 32
            assert state(link) is StoreState.FULL
            await link.api("STREAM.PURGE.KV_one", {}, dict[str, Any])
            await other.write("k", b"", 0)
            assert state(link) is StoreState.TAKES  # one upload that was too large is no reason to send runs elsewhere
            await bucket.write("k", b"", 0)
            assert state(link) is StoreState.TAKES


async def test_a_stream_that_cannot_write_to_its_disk_is_told_as_such_and_works_after_a_restart(
    tmp_path: Path,
) -> None:
    """NATS answers nothing then, so what was sent may have been stored; a neighbour goes on."""
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with opened(server.url) as link:
            bucket, other = await make(link, "one"), await make(link, "two")
            await jam(server.url, tmp_path / "data", "KV_one", "$KV.one.fill")
            link.patience = QUICK
            with pytest.raises(NoRoom, match="KV_one takes messages and neither stores nor refuses them") as told:
                await bucket.write("k", b"1", 0)
            link.patience = Patience()
            assert not isinstance(told.value, NotStored)
            await other.write("k", b"1", 0)
            assert state(link) is StoreState.STUCK
            server.restart()
            await eventually(lambda: state(link) is StoreState.TAKES)
            assert await bucket.get("k") is None
            assert await bucket.write("k", b"2", 0) is not None
    finally:
        server.kill()


async def test_a_caller_is_told_of_a_full_disk_without_waiting_for_a_response(tmp_path: Path) -> None:
    """SAFE-13: each of many writers, although a response could come for ten minutes. A worker would wait."""
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with opened(server.url) as link:
            bucket = await make(link, "one")
            await jam(server.url, tmp_path / "data", "KV_one", "$KV.one.fill")
            link.patience = Patience(answer_seconds=600.0, unanswered_seconds=600.0)
            async with asyncio.timeout(60):
                writes = [bucket.write(f"k{number}", b"1", 0) for number in range(20)]
                told = await asyncio.gather(*writes, return_exceptions=True)
            assert {type(each) for each in told} == {NoRoom}
            link.patience = replace(link.patience, full_seconds=600.0)
            before = link._count
            worker = asyncio.create_task(bucket.write("k", b"2", 0))
            await eventually(lambda: link._count > before + 2)  # the write, the probe, and the write again
            assert not worker.done()
            server.restart()
            assert await worker is not None
    finally:
        server.kill()


async def test_a_server_that_is_merely_slow_is_not_taken_for_a_full_one(tmp_path: Path) -> None:
    """`up` restarts NATS on this word: an answer that came late must not raise it, nor a server that says nothing."""
    with configured_nats(tmp_path) as nats:
        async with opened(nats.url) as link:
            await make(link, "one")
            link.patience = QUICK
            nats.freeze()
            late = asyncio.create_task(link.store("$KV.one.k", b"1"))
            before = link._count
            await eventually(lambda: link._count == before + 2)  # the second is the question after the silence
            nats.process.send_signal(signal.SIGCONT)
            with pytest.raises(Unavailable) as told:
                await late
            assert not isinstance(told.value, NoRoom)
            nats.freeze()
            with pytest.raises(Unavailable) as told:
                await link.store("$KV.one.k", b"1")
            assert not isinstance(told.value, NoRoom)
            nats.process.send_signal(signal.SIGCONT)
            assert state(link) is StoreState.TAKES


@pytest.mark.parametrize(("code", "stream"), [(10060, "S"), (10167, ""), (10077, ""), (10008, "")])
async def test_only_our_own_refusal_is_an_answer_in_its_turn(
    link: Link, monkeypatch: pytest.MonkeyPatch, code: int, stream: str
) -> None:
    """An overloaded server refuses with 10167 whatever comes in, ahead of what it has queued: it is not stuck."""

    async def refused(*_: object, **__: object) -> Raw:
        answer = {"stream": "S", "seq": 0, "error": {"code": 400, "err_code": code, "description": "no"}}
        return Raw("s", "", json.dumps(answer).encode(), b"")

    monkeypatch.setattr(link, "ask", refused)
    assert await link._swallowed("s") == stream


@pytest.mark.parametrize("code", [10167, 10077])
async def test_a_refusal_after_silence_does_not_say_that_nothing_was_stored(
    link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The try that was not answered may still lie in the server's queue."""
    answers: list[Exception] = []

    async def store(*_: object, **__: object) -> int:
        raise answers.pop(0)

    monkeypatch.setattr(link, "store", store)
    queue = JetStreamQueue(link, prepared)
    job = Job(run_id=str(uuid.uuid4()), flow_name="f", tag="default", submitted_at=0.0)
    for silence, is_certain in ((True, False), (False, True)):
        for write in (Bucket(link, "b").write("k", b"1", 0), queue.put(job)):
            answers[:] = [*([Unavailable("silence")] if silence else []), Rejected(code, "no")]
            with pytest.raises(Unavailable) as told:
                await write
            assert isinstance(told.value, NotStored) == is_certain


async def test_the_question_after_silence_stores_nothing(link: Link) -> None:
    name = "S_never"
    await link.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "num_replicas": 1}, dict[str, Any])
    try:
        assert await link._swallowed(name) == name
        info = await link.api(f"STREAM.INFO.{name}", {}, dict[str, Any])
        assert info["state"]["last_seq"] == 0
        assert await link._swallowed("nobody.listens.here") == ""
    finally:
        await link.api(f"STREAM.DELETE.{name}", {}, dict[str, Any])


@pytest.mark.parametrize(
    ("error", "ambiguous", "kind"),
    [
        (Unavailable("x"), True, Unavailable),
        (NoConnection("x"), False, NotStored),
        (NoRoom("x"), True, NoRoom),
        (NoRoom("x"), False, StreamFull),
        (StreamFull("x"), False, StreamFull),
        (StreamFull("x"), True, NoRoom),
    ],
)
def test_what_is_certain_and_what_is_the_matter_are_both_told_after_the_last_try(
    error: Unavailable, ambiguous: bool, kind: type[Unavailable]
) -> None:
    assert type(gave_up("write", error, ambiguous=ambiguous)) is kind


def test_a_refusal_is_forgotten_after_a_minute() -> None:
    """Who is sent no requests because of it would never hear of its end."""
    refusals = Refusals()
    refusals.note("A", 1000.0, is_stuck=True)
    refusals.note("B", 1030.0, is_stuck=False)
    assert refusals.state(1059.0) is StoreState.STUCK
    assert refusals.state(1061.0) is StoreState.FULL
    assert refusals.state(1091.0) is StoreState.TAKES
