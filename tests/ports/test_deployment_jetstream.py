"""What can be known of a deployment: looked at on real servers, healthy and sick."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.diagnosis.facts import (
    Account,
    Keeper,
    Off,
    Orphans,
    Server,
    Trouble,
    Unknown,
    Unreachable,
    Workers,
    WorkQueueFacts,
)
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, encode_worker
from pyoco_server.ports.deployment import jetstream
from pyoco_server.ports.deployment.jetstream import PATIENCE, JetStreamDeployment
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.wiring.operating import open_deployment
from support.backends import opened_backend, submitted
from support.configured_nats import configured_nats
from support.deployment_looks import deployment, patient
from support.nats_clients import network_client
from support.servers import config_for
from support.waiting import eventually

__all__ = ["deployment", "patient"]


async def looked_at(url: str, trouble: Trouble | None = None) -> Server | Unreachable:
    """Who is not there is not waited for for long. Where a machine is too busy to find that trouble, for longer."""
    for seconds in (1.0, 4.0, 16.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jetstream, "_CONNECT_SECONDS", seconds)
            began = time.monotonic()
            async with open_deployment(config_for(url)) as deployment:
                found = await deployment.reach()
            assert time.monotonic() - began < seconds + 60
        if (found.trouble if isinstance(found, Unreachable) else None) is trouble:
            break
    return found


# The server and its account


async def test_a_server_tells_what_it_is(nats_url: str) -> None:
    server = await looked_at(nats_url)
    assert isinstance(server, Server)
    assert server.version.startswith("2.")
    assert 0 < server.round_trip_seconds < 60
    assert (server.payload_bytes_max, server.listens_on, server.cluster) == (1_048_576, "127.0.0.1", "")
    assert not server.wants_login
    assert not server.wants_tls


async def test_a_server_that_is_not_there_is_a_fact_and_soon(unused_port: int) -> None:
    server = await looked_at(f"nats://127.0.0.1:{unused_port}", Trouble.NOBODY_ANSWERS)
    assert isinstance(server, Unreachable)
    assert server.trouble is Trouble.NOBODY_ANSWERS
    assert "refused" in server.why or "failed" in server.why


async def test_one_that_takes_the_connection_and_says_nothing_is_not_waited_for(unused_port: int) -> None:
    taken: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", unused_port)
    async with silent:
        server = await looked_at(f"nats://127.0.0.1:{unused_port}", Trouble.NOBODY_ANSWERS)
        for writer in taken:
            writer.close()
    assert taken
    assert isinstance(server, Unreachable)


async def test_a_refused_login_is_told_from_an_absent_server(tmp_path: Path) -> None:
    with configured_nats(tmp_path, "authorization { user: u, password: p }", jetstream="off") as nats:
        refused = await looked_at(nats.url, Trouble.LOGIN_REFUSED)
        assert isinstance(refused, Unreachable)
        assert refused.trouble is Trouble.LOGIN_REFUSED
        let_in = await looked_at(nats.url.replace("//", "//u:p@"))
        assert isinstance(let_in, Server)
        assert let_in.wants_login


async def test_a_server_without_tls_is_told_from_an_absent_one(nats_url: str) -> None:
    server = await looked_at(nats_url.replace("nats://", "tls://"), Trouble.TLS_FAILED)
    assert isinstance(server, Unreachable)
    assert server.trouble is Trouble.TLS_FAILED
    assert "does not offer it" in server.why


async def test_jetstream_that_is_off_is_a_fact(tmp_path: Path) -> None:
    with configured_nats(tmp_path, jetstream="off") as nats:
        async with open_deployment(config_for(nats.url)) as deployment:
            assert isinstance(await deployment.reach(), Server)
            assert isinstance(await deployment.account(), Off)


async def test_jetstream_that_is_off_for_our_account_is_a_fact(tmp_path: Path) -> None:
    accounts = "accounts { A { users: [{user: a, password: a}] }, B { jetstream: enabled } }"
    with configured_nats(tmp_path, accounts) as nats:
        async with open_deployment(config_for(nats.url.replace("//", "//a:a@"))) as deployment:
            assert isinstance(await deployment.reach(), Server)
            account = await deployment.account()
            assert isinstance(account, Off)
            assert "not enabled" in account.why


async def test_limits_of_an_account_are_known(tmp_path: Path) -> None:
    limits = "{ max_mem: 1MB, max_file: 1GB, max_streams: 12, max_consumers: 50 }"
    accounts = f"accounts {{ A {{ users: [{{user: a, password: a}}], jetstream: {limits} }} }}"
    with configured_nats(tmp_path, accounts) as nats:
        config = config_for(nats.url.replace("//", "//a:a@"))
        async with open_deployment(config) as deployment:
            await deployment.reach()
            account = await deployment.account()
    assert isinstance(account, Account)
    assert (account.storage_bytes_max, account.memory_bytes_max) == (1024**3, 1024**2)
    assert (account.streams_max, account.consumers_max, account.streams) == (12, 50, 0)


async def test_what_a_user_may_not_ask_is_unknown_with_the_server_s_own_words(tmp_path: Path) -> None:
    users = "users: [{ user: u, password: p, permissions { publish: { deny: '$JS.API.>' } } }]"
    with configured_nats(tmp_path, f"authorization {{ {users} }}") as nats:
        async with open_deployment(config_for(nats.url.replace("//", "//u:p@"))) as deployment:
            await deployment.reach()
            account = await deployment.account()
    assert isinstance(account, Unknown)
    assert "permissions violation" in account.why.lower()


# Work


async def test_jobs_are_counted_by_tag_also_of_tags_nobody_ever_served(
    deployment: JetStreamDeployment, prepared: NatsBackendConfig
) -> None:
    async with opened_backend(prepared) as backend:
        intake = await backend.queue.open_intake(["default"], lambda delivery: None)
        await intake.close()
        await submitted(backend, "f", "default")
        await submitted(backend, "f", "gpu")
        await submitted(backend, "f", "gpu")
    queue = await deployment.queue()
    assert isinstance(queue, WorkQueueFacts)
    assert queue.jobs == {"default": 1, "gpu": 2}
    assert all(abs(time.time() - queue.oldest_at[tag]) < 60 for tag in ("default", "gpu"))
    (tag_queue,) = queue.tag_queues
    assert (tag_queue.tag, tag_queue.waiting, tag_queue.in_hand, tag_queue.is_paused) == ("default", 1, 0, False)
    assert (tag_queue.ack_wait_seconds, tag_queue.max_deliver, tag_queue.in_hand_max) == (30.0, 20, 200)


async def test_a_consumer_that_is_not_ours_and_one_that_is_paused_are_seen(
    deployment: JetStreamDeployment, prepared: NatsBackendConfig, link: Link
) -> None:
    async with opened_backend(prepared) as backend:
        await (await backend.queue.open_intake(["default"], lambda delivery: None)).close()
    js = network_client(link).jetstream()
    await js.pause_consumer(prepared.work_stream, "pyoco_worker_default", "2099-01-01T00:00:00Z")
    await js.add_consumer(
        prepared.work_stream, durable_name="audit", filter_subject=f"{prepared.work_subject_prefix}.x"
    )
    queue = await deployment.queue()
    assert isinstance(queue, WorkQueueFacts)
    assert queue.strangers == ("audit",)
    assert [tag_queue.is_paused for tag_queue in queue.tag_queues] == [True]


def a_worker(worker_id: str, **more: Any) -> WorkerRecord:
    now = time.time()
    record = WorkerRecord(
        worker_id=worker_id,
        instance_id="i",
        state=WorkerState.IDLE,
        tags=("default",),
        last_seen_at=now,
        last_heartbeat_at=now,
    )
    return replace(record, **more)


async def test_every_worker_is_read_and_what_is_none_is_named(
    deployment: JetStreamDeployment, prepared: NatsBackendConfig, link: Link
) -> None:
    bucket = Bucket(link, prepared.workers_kv_bucket)
    await bucket.write("anna", encode_worker(a_worker("anna")), 0)
    await bucket.write("broken", b"{", 0)
    gone = await bucket.write("gone", encode_worker(a_worker("gone")), 0)
    assert gone is not None
    await bucket.delete("gone", gone.revision)
    workers = await deployment.workers()
    assert isinstance(workers, Workers)
    assert [record.worker_id for record in workers.records] == ["anna"]
    assert workers.unreadable == ("broken",)


async def test_an_empty_registry_is_no_riddle(deployment: JetStreamDeployment) -> None:
    assert await deployment.workers() == Workers(())


async def test_a_keeper_is_known_by_its_waiting(
    deployment: JetStreamDeployment, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await deployment.keeper() == Keeper(was_here=False, is_listening=False)
    async with opened_backend(prepared) as backend:
        notices = await backend.queue.open_notices()
        taking = asyncio.create_task(notices.take(200))
        await eventually(lambda: is_keeper(deployment, is_listening=True))
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        await notices.close()
    monkeypatch.setattr(jetstream, "_KEEPER_SECONDS", 0.5)  # for one that asks again and again
    await eventually(lambda: is_keeper(deployment, is_listening=False))


async def is_keeper(deployment: JetStreamDeployment, *, is_listening: bool) -> bool:
    return await deployment.keeper() == Keeper(was_here=True, is_listening=is_listening)


async def test_notices_that_nobody_dealt_with_are_counted(
    deployment: JetStreamDeployment, prepared: NatsBackendConfig, link: Link
) -> None:
    await link.store(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{prepared.work_stream}.x", b"{}")
    keeper = await deployment.keeper()
    assert isinstance(keeper, Keeper)
    assert keeper.notices == 1
    assert keeper.oldest_at == pytest.approx(time.time(), abs=60)


async def test_runs_are_found_and_strange_names_do_no_harm(
    deployment: JetStreamDeployment, prepared: NatsBackendConfig
) -> None:
    async with opened_backend(prepared) as backend:
        run_id = await submitted(backend, "f")
    found = await deployment.runs([run_id, "never", "a b", ""])
    assert not isinstance(found, Unknown)
    assert [run.run_id for run in found] == [run_id]


# Object stores


@contextlib.asynccontextmanager
async def looking(config: NatsBackendConfig, link: Link, upload_seconds: float) -> AsyncIterator[JetStreamDeployment]:
    async with opened_backend(config) as backend:
        own = Link(PATIENCE)
        stores = {config.wheel_object_store_bucket: JetStreamObjects(own, config.wheel_object_store_bucket)}
        deployment = JetStreamDeployment(own, config, backend.runs, stores)
        deployment.upload_seconds = upload_seconds
        await deployment.reach()
        try:
            yield deployment
        finally:
            await own.close()


async def test_parts_that_belong_to_no_file_are_found_once_they_are_old(
    prepared: NatsBackendConfig, link: Link
) -> None:
    async def some_bytes() -> AsyncIterator[bytes]:
        yield b"x" * 300_000

    bucket = prepared.wheel_object_store_bucket
    await JetStreamObjects(link, bucket).put("whole", some_bytes(), 10**6)
    for _ in range(3):
        await link.store(f"$O.{bucket}.C.left", b"y" * 1000)
    async with looking(prepared, link, upload_seconds=3600) as deployment:
        assert await deployment.orphans() == (Orphans(bucket=bucket, count=0, size_bytes=0),)
    async with looking(prepared, link, upload_seconds=-60) as deployment:
        assert await deployment.orphans() == (Orphans(bucket=bucket, count=1, size_bytes=2 * 128 * 1024 + 1000),)


@pytest.mark.parametrize(
    ("description", "is_seen"),
    [
        (b'{"name": "odd", "nuid": "theirs", "digest": "SHA-256=\xe6\x97\xa5"}', True),
        (b'{"name": "odd", "nuid": "theirs", "size": "ten"}', True),
        (b'{"name": "odd", "nuid": ["theirs"]}', False),
        (b"\xff", False),
        (b"[" * 100_000, False),
    ],
    ids=["digest", "size", "nuid", "no text", "too deep"],
)
async def test_a_file_whose_description_is_odd_is_not_taken_for_left_behind(
    prepared: NatsBackendConfig, link: Link, description: bytes, is_seen: bool
) -> None:
    """It belongs to that file, or nobody knows whether it does."""
    bucket = prepared.wheel_object_store_bucket
    await link.store(f"$O.{bucket}.C.theirs", b"y" * 1000)
    await link.store(f"$O.{bucket}.M.b2Rk", description)
    async with looking(prepared, link, upload_seconds=-60) as deployment:
        (found,) = await deployment.orphans()
    if is_seen:
        assert found == Orphans(bucket=bucket, count=0, size_bytes=0)
    else:
        assert isinstance(found, Unknown)
        assert "b2Rk" in found.why
