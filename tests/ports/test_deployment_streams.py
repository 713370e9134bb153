"""What can be known of the streams of a deployment."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.core.diagnosis.facts import (
    MISSING,
    Found,
    Server,
    Unknown,
    Unreachable,
)
from pyoco_server.ports.deployment.jetstream import JetStreamDeployment
from pyoco_server.ports.known_ledger.jetstream import JetStreamKnownLedger
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.grid_resources import ensure_grid, grid_resources
from pyoco_server.ports.nats.link import Link, Missing, open_link
from pyoco_server.ports.nats.resources import PRICED_BUCKET, priced_resources, resources_of
from pyoco_server.wiring.operating import open_deployment
from support.configured_nats import configured_nats
from support.deployment_looks import deployment, patient
from support.servers import NatsServer, config_for
from support.waiting import eventually

__all__ = ["deployment", "patient"]

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


@pytest.mark.usefixtures("abandoned_consumers_stay")
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
    """Whatever is stored in NATS: the doctor reports it, and continues."""

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
    with contextlib.suppress(Missing):  # of another test: deployments share it
        await link.api(f"STREAM.DELETE.KV_{PRICED_BUCKET}", {}, dict[str, Any])
    async with open_deployment(prepared, priced) as deployment:
        assert isinstance(await deployment.reach(), Server)
        assert not set(wanted) & {each.name for each in await deployment.streams()}
        await ensure(link, [each for each in priced_resources(prepared, priced) if each.name == f"P_{name}_DLQ"])
        try:
            seen = {each.name: each.state for each in await deployment.streams()}
        finally:
            await link.api(f"STREAM.DELETE.P_{name}_DLQ", {}, dict[str, Any])
    assert [each for each in wanted if isinstance(seen[each], Found)] == [f"P_{name}_DLQ"]


async def test_the_ledger_that_is_remembered_is_told_and_nothing_is_made_by_looking(
    link: Link, prepared: NatsBackendConfig
) -> None:
    """SAFE-12"""
    with contextlib.suppress(Missing):  # of another test: deployments share it
        await link.api(f"STREAM.DELETE.KV_{PRICED_BUCKET}", {}, dict[str, Any])
    async with open_deployment(prepared, PricedConfig()) as deployment:
        await deployment.reach()
        assert await deployment.remembered_ledger() is None
        with pytest.raises(Missing):
            await link.api(f"STREAM.INFO.KV_{PRICED_BUCKET}", {}, dict[str, Any])
        known = JetStreamKnownLedger(link, prepared)
        await known.start()
        assert await deployment.remembered_ledger() is None
        assert await known.remember("first", await known.get())
        assert await deployment.remembered_ledger() == "first"
