"""What can be known of a deployment: looked at on real servers, healthy and sick."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.core.diagnosis.facts import (
    MISSING,
    Account,
    Found,
    Keeper,
    Off,
    Orphans,
    Queue,
    Server,
    Trouble,
    Unknown,
    Unreachable,
    Workers,
)
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, encode_worker
from pyoco_server.ports.deployment import jetstream
from pyoco_server.ports.deployment.jetstream import PATIENCE, JetStreamDeployment
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.grid_resources import ensure_grid, grid_resources
from pyoco_server.ports.nats.link import Link, open_link
from pyoco_server.ports.nats.resources import ensure, priced_resources, resources_of
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.wiring import open_deployment
from support.backends import opened_backend, submitted
from support.configured_nats import configured_nats
from support.nats_clients import network_client
from support.servers import NatsServer, config_for
from support.waiting import eventually


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    """Who is there is waited for, on a machine as busy as it likes."""
    with pytest.MonkeyPatch.context() as patch:  # its own: the test's is undone before `config` is
        patch.setattr(jetstream, "_CONNECT_SECONDS", 60.0)
        yield


@pytest.fixture
async def deployment(prepared: NatsBackendConfig) -> AsyncIterator[JetStreamDeployment]:
    """A look at streams that are there, and that nobody uses."""
    async with open_deployment(prepared) as deployment:
        assert isinstance(await deployment.reach(), Server)
        yield deployment


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


# Streams


async def test_every_stream_is_shown_as_we_make_it_and_as_it_is(
    deployment: JetStreamDeployment, prepared: NatsBackendConfig
) -> None:
    streams = await deployment.streams()
    assert [stream.name for stream in streams] == [resource.name for resource in resources_of(prepared)]
    for stream in streams:
        assert isinstance(stream.state, Found)
        assert stream.state.leader
        assert {key: stream.state.settings[key] for key in stream.wanted} == stream.wanted


async def test_a_missing_stream_is_told_from_an_unreadable_one(
    deployment: JetStreamDeployment, prepared: NatsBackendConfig, link: Link
) -> None:
    await link.api(f"STREAM.DELETE.{prepared.work_stream}", {}, dict[str, Any])
    states = {stream.name: stream.state for stream in await deployment.streams()}
    assert [name for name, state in states.items() if state is MISSING] == [prepared.work_stream]


async def test_where_nothing_is_nothing_is_made(config: NatsBackendConfig, link: Link) -> None:
    """A look leaves a deployment as it was: no stream, no consumer."""
    before = await link.api("INFO", {}, dict[str, Any])
    async with open_deployment(config) as deployment:
        await deployment.reach()
        assert all(stream.state is MISSING for stream in await deployment.streams())
        assert isinstance(await deployment.queue(), Unknown)
        assert isinstance(await deployment.workers(), Unknown)
        assert isinstance(await deployment.keeper(), Unknown)
        assert isinstance(await deployment.clock_ahead(), Unknown)
        assert all(isinstance(each, Unknown) for each in await deployment.orphans())
    after = await link.api("INFO", {}, dict[str, Any])
    assert (after["streams"], after["consumers"]) == (before["streams"], before["consumers"])


async def test_a_look_leaves_no_consumer_behind(
    deployment: JetStreamDeployment, prepared: NatsBackendConfig, link: Link
) -> None:
    for look in (deployment.queue, deployment.workers, deployment.keeper, deployment.orphans):
        await look()

    async def none_left() -> bool:
        infos = [await link.api(f"STREAM.INFO.{each.name}", {}, dict[str, Any]) for each in resources_of(prepared)]
        return not any(info["state"]["consumer_count"] for info in infos)

    await eventually(none_left)


async def test_a_server_that_stops_answering_leaves_unknowns_and_no_exception(tmp_path: Path) -> None:
    """Nothing hangs: each look has an end."""
    with configured_nats(tmp_path) as nats:
        async with open_deployment(config_for(nats.url)) as deployment:
            await deployment.reach()
            nats.freeze()
            began = time.monotonic()
            looks: list[Awaitable[object]] = [
                deployment.account(),
                deployment.clock_ahead(),
                deployment.queue(),
                deployment.workers(),
                deployment.keeper(),
                deployment.runs(["r"]),
            ]
            streams, *others = await asyncio.gather(deployment.streams(), *looks)
            assert isinstance(streams, tuple)
            assert all(isinstance(stream.state, Unknown) for stream in streams)
            assert all(isinstance(fact, Unknown) for fact in others)
            assert time.monotonic() - began < 60
            nats.process.kill()


async def test_a_connection_that_is_lost_says_nothing_about_jetstream(tmp_path: Path) -> None:
    with configured_nats(tmp_path) as nats:
        async with open_deployment(config_for(nats.url)) as deployment:
            assert isinstance(deployment, JetStreamDeployment)
            await deployment.reach()
            nats.process.kill()
            await eventually(lambda: not deployment._link.is_up)
            assert isinstance(await deployment.account(), Unknown)


async def test_a_look_that_fails_as_nobody_foresaw_is_unknown_with_the_reason(
    prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies on NATS: the doctor says so, and goes on."""

    async def surprise(*_: object, **__: object) -> object:
        raise KeyError("no such thing")

    async with open_deployment(prepared) as deployment:
        with monkeypatch.context() as broken:
            broken.setattr(Link, "open", surprise)
            reached = await deployment.reach()
        assert isinstance(reached, Unreachable)
        await deployment.reach()
        for name in ("ask", "api", "insist"):
            monkeypatch.setattr(Link, name, surprise)
        facts: list[object] = [
            await deployment.account(),
            await deployment.clock_ahead(),
            await deployment.queue(),
            await deployment.workers(),
            await deployment.keeper(),
            await deployment.runs(["r"]),
            *[stream.state for stream in await deployment.streams()],
            *await deployment.orphans(),
        ]
        assert set(map(type, facts)) == {Unknown}
        assert {getattr(fact, "why", "") for fact in facts} == {"KeyError: 'no such thing'"}


async def test_the_clocks_of_one_machine_agree(
    deployment: JetStreamDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = await deployment.clock_ahead()
    assert isinstance(ahead, float)
    assert abs(ahead) < 10
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 100)
    behind = await deployment.clock_ahead()
    assert isinstance(behind, float)
    assert behind == pytest.approx(-100, abs=20)


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
    assert isinstance(queue, Queue)
    assert queue.jobs == {"default": 1, "gpu": 2}
    assert all(abs(time.time() - queue.oldest_at[tag]) < 60 for tag in ("default", "gpu"))
    (lane,) = queue.lanes
    assert (lane.tag, lane.waiting, lane.in_hand, lane.is_paused) == ("default", 1, 0, False)
    assert (lane.ack_wait_seconds, lane.max_deliver, lane.in_hand_max) == (30.0, 20, 200)


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
    assert isinstance(queue, Queue)
    assert queue.strangers == ("audit",)
    assert [lane.is_paused for lane in queue.lanes] == [True]


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
        deployment = JetStreamDeployment(own, config, backend.runs, stores, upload_seconds)
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


async def test_other_settings_of_a_stream_show(link: Link, config: NatsBackendConfig) -> None:
    await ensure(link, resources_of(replace(config, dlq_max_age_sec=60.0)))
    async with open_deployment(config) as deployment:
        await deployment.reach()
        states = {stream.name: stream for stream in await deployment.streams()}
    letters = states[config.dlq_stream]
    assert isinstance(letters.state, Found)
    assert (letters.wanted["max_age"], letters.state.settings["max_age"]) == (604_800 * 10**9, 60 * 10**9)


async def test_streams_of_programs_are_missed_only_where_some_of_them_are(own_nats_server: NatsServer) -> None:
    """An installation from before programs misses nothing."""
    config, grid = config_for(own_nats_server.url), GridConfig()
    link = await open_link(own_nats_server.url, "tests")
    wanted = [each.name for each in grid_resources(config, grid)]
    async with open_deployment(config, grid=grid) as deployment:
        assert isinstance(await deployment.reach(), Server)
        assert not set(wanted) & {each.name for each in await deployment.streams()}
        await ensure_grid(link, config, grid)
        await link.api("STREAM.DELETE.KV_pyoco_exec_slots", {}, dict[str, Any])
        seen = {each.name: each.state for each in await deployment.streams()}
    assert [name for name in wanted if not isinstance(seen[name], Found)] == ["KV_pyoco_exec_slots"]
    await link.close()


async def test_streams_of_priced_runs_are_missed_only_where_some_of_them_are(
    link: Link, prepared: NatsBackendConfig
) -> None:
    """Whoever never had a ledger has none of them, and misses nothing."""
    name = prepared.runs_kv_bucket
    priced = PricedConfig(
        pack_stream=f"P_{name}",
        pack_subject=f"p.{name}",
        pack_input_bucket=f"i-{name}",
        results_bucket=f"r-{name}",
        results_secret="geheim",
    )
    wanted = [each.name for each in priced_resources(prepared, priced)]
    async with open_deployment(prepared, priced) as deployment:
        assert isinstance(await deployment.reach(), Server)
        assert not set(wanted) & {each.name for each in await deployment.streams()}
        await ensure(link, [each for each in priced_resources(prepared, priced) if each.name == f"P_{name}_DLQ"])
        try:
            seen = {each.name: each.state for each in await deployment.streams()}
        finally:
            await link.api(f"STREAM.DELETE.P_{name}_DLQ", {}, dict[str, Any])
    assert [each for each in wanted if isinstance(seen[each], Found)] == [f"P_{name}_DLQ"]
