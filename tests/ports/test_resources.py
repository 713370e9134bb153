"""The streams and buckets: made when missing, left alone when present."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.ensuring import ensure, refuse_rollups
from pyoco_server.ports.nats.link import Link, Rejected, open_link
from pyoco_server.ports.nats.resources import resources_of
from support.nats_clients import network_client


async def config_of(link: Link, stream: str) -> dict[str, Any]:
    info = await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any])
    return dict(info["config"])


async def test_everything_is_made_as_the_contract_says(link: Link, prepared: NatsBackendConfig) -> None:
    """FLOW-277 to FLOW-284"""
    work = await config_of(link, prepared.work_stream)
    assert (work["retention"], work["subjects"]) == ("workqueue", [f"{prepared.work_subject_prefix}.>"])
    letters = await config_of(link, prepared.dlq_stream)
    assert (letters["retention"], letters["max_msgs"], letters["max_bytes"]) == ("limits", 100_000, 536_870_912)
    assert letters["max_age"] == 604_800 * 10**9
    for bucket in (prepared.runs_kv_bucket, prepared.workers_kv_bucket, prepared.auth_kv_bucket):
        config = await config_of(link, f"KV_{bucket}")
        assert (config["max_msgs_per_subject"], config["max_age"]) == (1, 0)
    history = await config_of(link, f"KV_{prepared.wheel_history_kv_bucket}")
    assert (history["max_msgs_per_subject"], history["max_age"]) == (1, 7_776_000 * 10**9)
    await config_of(link, f"OBJ_{prepared.wheel_object_store_bucket}")


async def test_the_library_finds_our_buckets(link: Link, prepared: NatsBackendConfig) -> None:
    """Other tools read them too."""
    js = network_client(link).jetstream()
    bucket = await js.key_value(prepared.runs_kv_bucket)
    await bucket.put("k", b"v")
    assert (await bucket.get("k")).value == b"v"
    await js.object_store(prepared.wheel_object_store_bucket)


async def test_a_bucket_cannot_be_emptied_by_writing_one_key(link: Link, prepared: NatsBackendConfig) -> None:
    """But for that of runs: the server cannot leave markers without rollups, and turns them on."""
    takes_rollups, refusals = [], set()
    for resource in resources_of(prepared):
        if resource.name.startswith("KV_"):
            key = f"$KV.{resource.name.removeprefix('KV_')}.x"
            try:
                await link.store(key, b"", {"Nats-Rollup": "all"})
                takes_rollups.append(resource.name)
            except Rejected as error:
                refusals.add(str(error))
    assert takes_rollups == [f"KV_{prepared.runs_kv_bucket}"]
    assert refusals == {"rollup not permitted (10111)"}


async def test_a_bucket_of_an_earlier_version_is_used_as_it_is_until_the_operator_comes(
    link: Link, config: NatsBackendConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """FLOW-285"""
    resources = resources_of(config)
    for each in resources:
        is_bucket = each.name.startswith("KV_")
        earlier = each.config | {"allow_rollup_hdrs": True, "max_bytes": 2**24} if is_bucket else each.config
        await link.api(f"STREAM.CREATE.{each.name}", earlier, dict[str, Any])
    await Bucket(link, config.auth_kv_bucket).write("kept", b"{}", 0)
    with caplog.at_level(logging.WARNING):
        await ensure(link, resources)
        assert not caplog.records
        assert (await config_of(link, f"KV_{config.auth_kv_bucket}"))["allow_rollup_hdrs"]
        for _ in range(2):
            await refuse_rollups(link, resources)
    found = {each.name: await config_of(link, each.name) for each in resources}
    allowed = {name for name, each in found.items() if each["allow_rollup_hdrs"]}
    by_schedules = config.clock_stream  # the server allows them wherever messages are scheduled
    assert {name for name in allowed if not name.startswith("OBJ_")} == {f"KV_{config.runs_kv_bucket}", by_schedules}
    assert {name for name in found if name.startswith("OBJ_")} < allowed
    assert found[f"KV_{config.auth_kv_bucket}"]["max_bytes"] == 2**24
    assert await Bucket(link, config.auth_kv_bucket).get("kept") is not None


async def test_an_existing_resource_is_left_as_it_is(
    link: Link, config: NatsBackendConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """FLOW-285"""
    other = replace(config, dlq_max_msgs=5, dlq_max_age_sec=60.0)
    await ensure(link, resources_of(other))
    before = [await config_of(link, resource.name) for resource in resources_of(config)]
    with caplog.at_level(logging.WARNING):
        await ensure(link, resources_of(config))
    assert [await config_of(link, resource.name) for resource in resources_of(config)] == before
    warnings = [record for record in caplog.records if "other settings" in record.message]
    assert len(warnings) == 1  # the age; another limit of messages is the operator's choice


async def test_many_processes_may_make_them_at_once(link: Link, config: NatsBackendConfig, nats_url: str) -> None:
    links = [await open_link(nats_url, f"p{n}") for n in range(4)]
    each = [replace(config, dlq_max_msgs=n + 1) for n in range(4)]
    await asyncio.gather(*(ensure(one, resources_of(its)) for one, its in zip(links, each, strict=True)))
    assert (await config_of(link, config.dlq_stream))["max_msgs"] in {1, 2, 3, 4}
    for one in links:
        await one.close()


async def test_short_lives_are_possible(link: Link, config: NatsBackendConfig) -> None:
    """The server wants the window of message ids to be no longer than a message's life."""
    await ensure(link, resources_of(replace(config, dlq_max_age_sec=0.5, wheel_history_ttl_sec=30.0)))
    letters = await config_of(link, config.dlq_stream)
    assert (letters["max_age"], letters["duplicate_window"]) == (500_000_000, 500_000_000)


async def test_what_cannot_be_made_is_named(link: Link, config: NatsBackendConfig) -> None:
    """FLOW-286"""
    _, _, own = config.work_stream.partition("_")  # in the names of all of them, and whichever fails first is told
    with pytest.raises(Unavailable, match=rf"cannot make \w+_{own}: replicas"):
        await ensure(link, resources_of(replace(config, jetstream_replicas=3)))
