"""Inputs in JetStream: the contract, how long they are kept, and outages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.inputs import KEY, MANY, InputsContract, put
from pyoco_server.config import PricedConfig
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.inputs.jetstream import JetStreamInputs
from pyoco_server.ports.inputs.port import Inputs
from pyoco_server.ports.nats.link import Link, Missing, Patience, open_link
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from support.faults import FaultyLink, open_faulty_link
from support.servers import NatsServer, unique
from support.waiting import eventually

SECOND = 10**9
#: Without a server, do not wait for one.
HASTY = Patience(down_seconds=0.5)


def store(link: Link, config: PricedConfig) -> JetStreamInputs:
    return JetStreamInputs(link, JetStreamObjects(link, config.pack_input_bucket), config, 1)


@pytest.fixture
async def priced(link: Link) -> AsyncIterator[PricedConfig]:
    config = PricedConfig(pack_input_bucket=unique("inputs"))
    yield config
    with contextlib.suppress(Missing):  # never made
        await link.api(f"STREAM.DELETE.OBJ_{config.pack_input_bucket}", {}, dict[str, Any])


@pytest.fixture
async def inputs(link: Link, priced: PricedConfig) -> JetStreamInputs:
    inputs = store(link, priced)
    await inputs.start()
    return inputs


class TestJetStreamInputs(InputsContract):
    @pytest.fixture
    async def elsewhere(self, inputs: Inputs, nats_url: str, priced: PricedConfig) -> AsyncIterator[Inputs]:
        link = await open_link(nats_url, "elsewhere")
        yield store(link, priced)
        await link.close()


async def test_inputs_are_kept_for_the_retention_and_no_shorter(
    inputs: Inputs, link: Link, priced: PricedConfig
) -> None:
    """PRICED-167: as results"""
    for days, kept in ((30, 30), (40, 40), (20, 40)):
        await store(link, replace(priced, priced_retention_sec=days * 86_400)).start()
        found = await link.api(f"STREAM.INFO.OBJ_{priced.pack_input_bucket}", {}, dict[str, Any])
        assert found["config"]["max_age"] == kept * 86_400 * SECOND
    assert inputs.bucket == priced.pack_input_bucket


@pytest.mark.parametrize("faults", [["before"], ["after"], ["", "before"], ["", "after"], ["", "unheard"]])
async def test_a_put_that_fails_is_whole_or_not_there_and_may_be_repeated(
    inputs: Inputs, nats_url: str, priced: PricedConfig, tmp_path: Path, faults: list[str]
) -> None:
    faulty: FaultyLink = await open_faulty_link(nats_url, HASTY)
    try:
        writer = store(faulty, priced)
        faulty.faults.extend(faults)
        with contextlib.suppress(DependencyUnavailable):
            await put(writer, b"one")
        if await inputs.fetch(KEY, tmp_path / "copy", MANY) is not None:
            assert (tmp_path / "copy").read_bytes() == b"one"
        faulty.faults.clear()
        assert await inputs.head(KEY) in {None, await put(writer, b"one")}
        assert await inputs.fetch(KEY, tmp_path / "copy", MANY) is not None
    finally:
        await faulty.close()


async def test_a_damaged_input_is_not_a_missing_one(
    inputs: Inputs, link: Link, priced: PricedConfig, tmp_path: Path
) -> None:
    await put(inputs, b"one")
    info = await link.api(f"STREAM.INFO.OBJ_{priced.pack_input_bucket}", {"subjects_filter": ">"}, dict[str, Any])
    (meta,) = [subject for subject in info["state"]["subjects"] if ".M." in subject]
    await link.store(meta, b'{"name":', {"Nats-Rollup": "sub"})
    for doing in (inputs.head(KEY), inputs.fetch(KEY, tmp_path / "copy", MANY)):
        with pytest.raises(DependencyUnavailable):
            await doing


async def test_an_outage_is_not_a_missing_input(
    own_nats_server: NatsServer, priced: PricedConfig, tmp_path: Path
) -> None:
    link = await open_link(own_nats_server.url, "tests", HASTY)
    inputs = store(link, priced)
    await inputs.start()
    await put(inputs, b"one")
    own_nats_server.kill()
    await eventually(lambda: not link.is_up)
    began = time.monotonic()
    said = await asyncio.gather(
        inputs.head(KEY),
        inputs.fetch(KEY, tmp_path / "copy", MANY),
        put(inputs, b"one"),
        inputs.delete(KEY),
        inputs.ping(),
        inputs.start(),
        return_exceptions=True,
    )
    assert all(isinstance(each, DependencyUnavailable) for each in said), said
    assert time.monotonic() - began < 60
    assert not (tmp_path / "copy").exists()
    own_nats_server.start()
    await eventually(lambda: link.is_up)
    assert await inputs.head(KEY) is not None
    await link.close()


async def test_a_store_that_is_gone_is_not_a_missing_input(inputs: Inputs, link: Link, priced: PricedConfig) -> None:
    await link.api(f"STREAM.DELETE.OBJ_{priced.pack_input_bucket}", {}, dict[str, Any])
    for doing in (inputs.head(KEY), inputs.ping()):
        with pytest.raises(DependencyUnavailable):
            await doing
