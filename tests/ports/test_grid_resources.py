"""The streams and buckets of programs: made, left alone, or refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.errors import DeploymentRefused, Unavailable
from pyoco_server.ports.nats import grid_resources as module
from pyoco_server.ports.nats.ensuring import Info, ensure
from pyoco_server.ports.nats.grid_resources import ensure_grid, ensure_product, grid_replicas, grid_resources
from pyoco_server.ports.nats.link import Link, Patience, Rejected, open_link
from pyoco_server.ports.nats.resources import Resource, resources_of
from pyoco_server.ports.program_events.port import REPEAT_SECONDS
from support.configured_nats import configured_nats
from support.nats_clients import network_client
from support.servers import NatsServer, quick_folder
from support.waiting import eventually

#: A copy of what the server has when nothing was asked for.
PLAIN = NatsBackendConfig()
DAY = 86_400 * 10**9


@pytest.fixture
async def own(own_nats_server: NatsServer) -> AsyncIterator[Link]:
    """A server without any stream."""
    link = await open_link(own_nats_server.url, "tests")
    yield link
    await link.close()


async def config_of(link: Link, stream: str) -> dict[str, Any]:
    return dict((await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any]))["config"])


async def test_everything_is_made_as_the_contract_says(own: Link) -> None:
    """Section 2.1, GRID-64, GRID-149; soon enough not to be noticed when a process starts"""
    began = time.monotonic()
    await ensure_grid(own, PLAIN, GridConfig(exec_artifact_ttl_sec=60.0))
    assert time.monotonic() - began < 60
    queue = await config_of(own, "PYOCO_EXEC")
    assert (
        queue
        | {
            "subjects": ["pyoco.exec.*.*.*.*"],
            "retention": "workqueue",
            "storage": "file",
            "discard": "new",
            "discard_new_per_subject": True,
            "max_msgs_per_subject": 1,
            "max_msg_size": 1024**2,
            "max_msgs": 1_000_000,
            "max_bytes": 8 * 1024**3,
            "num_replicas": 1,
        }
        == queue
    )
    ages = {"lanes": 0, "clients": 0, "slots": 0, "doors": 15 * 10**9, "acl": 0, "routes": 7 * DAY}
    for name, age in ages.items():
        found = await config_of(own, f"KV_pyoco_exec_{name}")
        assert (found["max_age"], found["max_msgs_per_subject"]) == (age, 5 if name == "acl" else 1)
        assert (found["subjects"], found["allow_direct"]) == ([f"$KV.pyoco_exec_{name}.>"], False)
    events = await config_of(own, "PYOCO_EXEC_EVENTS")
    assert (events["retention"], events["discard"], events["max_age"], events["max_bytes"]) == (
        "limits",
        "old",
        7 * DAY,
        1024**3,
    )
    assert events["subjects"] == ["pyoco.execev.*.*"]
    assert (await config_of(own, "OBJ_pyoco_artifacts"))["max_age"] == 60 * 10**9


async def test_the_library_finds_our_buckets(links: tuple[Link, Link]) -> None:
    """Other tools read them too."""
    js = network_client(links[0]).jetstream()
    await js.key_value("pyoco_exec_slots")
    await js.object_store("pyoco_artifacts")


def test_an_event_that_is_told_again_is_one_for_as_long_as_is_said() -> None:
    """GRID-174"""
    (events,) = (each for each in grid_resources(PLAIN, GridConfig()) if each.name == GridConfig().exec_events_stream)
    assert events.config["duplicate_window"] == REPEAT_SECONDS * 10**9


async def test_what_exists_is_kept_and_each_difference_is_told(own: Link, caplog: pytest.LogCaptureFixture) -> None:
    """GRID-6"""
    other = GridConfig(exec_queue_max_jobs=7, exec_queue_max_bytes=10**6, exec_artifact_ttl_sec=60.0)
    await ensure_grid(own, PLAIN, other)
    before = [await config_of(own, resource.name) for resource in grid_resources(PLAIN, GridConfig())]
    with caplog.at_level(logging.WARNING):
        await ensure_grid(own, PLAIN, GridConfig())
    assert [await config_of(own, resource.name) for resource in grid_resources(PLAIN, GridConfig())] == before
    told = [record.message for record in caplog.records if "other settings" in record.message]
    assert len(told) == 3  # messages, bytes, age
    caplog.clear()
    await ensure_grid(own, PLAIN, other)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_many_processes_may_make_them_at_once(own_nats_server: NatsServer) -> None:
    links = [await open_link(own_nats_server.url, f"p{n}") for n in range(4)]
    each = [GridConfig(exec_queue_max_jobs=n + 1) for n in range(4)]
    await asyncio.gather(*(ensure_grid(one, PLAIN, its) for one, its in zip(links, each, strict=True)))
    assert (await config_of(links[0], "PYOCO_EXEC"))["max_msgs"] in {1, 2, 3, 4}
    for one in links:
        await one.close()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "not a work queue": ({"retention": "limits"}, "its retention is 'limits'"),
    "many messages per subject": ({"max_msgs_per_subject": 2}, "exactly one message per subject"),
    "new ones push out old ones": ({"discard_new_per_subject": False}, "exactly one message per subject"),
}


@pytest.mark.parametrize(("changes", "told"), WRONG.values(), ids=WRONG.keys())
async def test_a_queue_that_cannot_keep_its_promises_is_refused(own: Link, changes: dict[str, Any], told: str) -> None:
    """GRID-6: and left as it is"""
    made = grid_resources(PLAIN, GridConfig())[0].config | changes
    await own.api("STREAM.CREATE.PYOCO_EXEC", made, dict[str, Any])
    with pytest.raises(DeploymentRefused, match=f"PYOCO_EXEC exists and .*{told}"):
        await ensure_grid(own, PLAIN, GridConfig())
    assert (await config_of(own, "PYOCO_EXEC"))["retention"] == made["retention"]


async def test_three_replicas_are_refused_by_one_node(own_nats_server: NatsServer) -> None:
    """GRID-6: at once, whether anything exists already or not"""
    patient = await open_link(own_nats_server.url, "patient", Patience(unanswered_seconds=300.0))
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(DeploymentRefused, match=r"EXEC_REPLICAS=3 needs 3 JetStream nodes|cannot be given 3"):
            await ensure_grid(patient, PLAIN, GridConfig(exec_replicas=3))
        assert time.monotonic() - began < 100
        await ensure(patient, resources_of(PLAIN))
        await ensure_grid(patient, PLAIN, GridConfig())
    await patient.close()


@pytest.mark.parametrize(
    "away", [{"offline": True}, {"current": False, "active": 60 * 10**9}], ids=["told by NATS", "silent"]
)
async def test_what_exists_is_used_while_a_node_is_away(
    own: Link, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, away: dict[str, Any]
) -> None:
    """GRID-6, FLOW-284: three copies that exist need no third node, so nobody who is restarted then is refused"""

    async def found(link: Link, resource: Resource) -> Info:
        peers = [{"name": "n2", "current": True}, {"name": "n3", **away}]
        return msgspec.convert({"config": resource.config, "cluster": {"leader": "n1", "replicas": peers}}, Info)

    monkeypatch.setattr(module, "find", found)
    grid = GridConfig(exec_replicas=3)
    with caplog.at_level(logging.WARNING):
        await ensure_product(own, PLAIN, grid)
        await ensure_grid(own, PLAIN, grid)
    told = [record for record in caplog.records if "a replica is unavailable" in record.getMessage()]
    assert len(told) == len(resources_of(PLAIN)) + len(grid_resources(PLAIN, grid))


async def test_a_third_node_that_has_just_come_up_is_waited_for(own: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """FIND-13: its JetStream answers a moment before the cluster may give it a copy"""
    await ensure_product(own, PLAIN, None)
    refusals = ["no suitable peers for placement"] * 2
    raised: list[str] = []

    async def insist(subject: str, *_: object) -> None:
        if refusals:
            raise Rejected(10005, refusals.pop())
        raised.append(subject)

    monkeypatch.setattr(own, "insist", insist)
    await ensure_product(own, PLAIN, GridConfig(exec_replicas=3))
    assert set(raised) == {f"STREAM.UPDATE.{resource.name}" for resource in resources_of(PLAIN)}


async def test_what_the_product_needs_is_refused_for_the_same_reason(own: Link) -> None:
    """GRID-6: on a NATS that has nothing yet"""
    with pytest.raises(DeploymentRefused, match="EXEC_REPLICAS=3 needs 3 JetStream nodes"):
        await ensure_product(own, PLAIN, GridConfig(exec_replicas=3))
    for grid in (None, GridConfig()):
        await ensure_product(own, PLAIN, grid)
    assert (await config_of(own, "KV_pyoco_runs"))["num_replicas"] == 1
    with pytest.raises(DeploymentRefused, match="cannot be given 3 replicas"):
        await ensure_product(own, PLAIN, GridConfig(exec_replicas=3))


async def test_where_the_products_replicas_are_asked_for_an_outage_is_what_it_is(own: Link) -> None:
    """Nobody asked the grid for three: it is the product's setting that cannot be kept."""
    config = NatsBackendConfig(jetstream_replicas=3)
    assert (grid_replicas(config, GridConfig()), grid_replicas(config, GridConfig(exec_replicas=1))) == (3, 1)
    with pytest.raises(Unavailable, match="cannot make"):
        await ensure_grid(own, config, GridConfig())


async def test_on_a_small_disk_the_queue_is_shorter(caplog: pytest.LogCaptureFixture) -> None:
    """NATS sets aside what a stream may hold: eight gigabytes are more than many a machine has."""
    with quick_folder() as folder, configured_nats(Path(folder), jetstream="max_file_store: 2GB") as server:
        link = await open_link(server.url, "small")
        await ensure(link, resources_of(PLAIN))  # the dead letters have theirs

        async def is_made() -> bool:
            try:
                await ensure_grid(link, PLAIN, GridConfig())
            except Unavailable:  # the machine is busy
                return False
            return True

        link.patience = Patience(unanswered_seconds=1.0)
        with caplog.at_level(logging.WARNING):
            await eventually(is_made)
        link.patience = Patience()
        streams = ("PYOCO_EXEC", "PYOCO_EXEC_EVENTS", "PYOCO_DLQ")
        sizes = [(await config_of(link, name))["max_bytes"] for name in streams]
        assert sum(sizes) <= 2 * 1024**3  # NATS reads GB as GiB; all reservations together fit the disk
        assert min(sizes) >= 16 * 1024**2
        assert any("lacks storage" in record.message for record in caplog.records)
        await link.close()
