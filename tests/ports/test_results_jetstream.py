"""Results in JetStream: the contract, how long they are kept, and the tokens that open them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from contracts.results import KEY, ResultsContract, put
from pyoco_server.config import NatsBackendConfig, PricedConfig
from pyoco_server.errors import Corrupt, DependencyUnavailable
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link, Missing, Patience, open_link
from pyoco_server.ports.nats.resources import SECRETS_BUCKET, priced_resources
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.results.jetstream import JetStreamResults
from pyoco_server.ports.results.port import Results
from pyoco_server.ports.results.secret import signing_secret
from support.faults import FaultyLink, open_faulty_link
from support.servers import NatsServer, unique
from support.waiting import eventually

SECOND = 10**9
SECRET = b"thirty-two bytes of a good secret"
#: Where nobody is there, nobody is waited for.
HASTY = Patience(down_seconds=0.5)


def store(link: Link, config: PricedConfig, secret: bytes = SECRET) -> JetStreamResults:
    return JetStreamResults(link, JetStreamObjects(link, config.results_bucket), config, 1, secret)


async def stream_of(link: Link, bucket: str) -> dict[str, Any]:
    return await link.api(f"STREAM.INFO.OBJ_{bucket}", {}, dict[str, Any])


@pytest.fixture
async def priced(link: Link) -> AsyncIterator[PricedConfig]:
    config = PricedConfig(results_bucket=unique("results"))
    yield config
    with contextlib.suppress(Missing):  # never made
        await link.api(f"STREAM.DELETE.OBJ_{config.results_bucket}", {}, dict[str, Any])


@pytest.fixture
async def results(link: Link, priced: PricedConfig) -> JetStreamResults:
    results = store(link, priced)
    await results.start()
    return results


class TestJetStreamResults(ResultsContract):
    @pytest.fixture
    async def elsewhere(self, results: Results, nats_url: str, priced: PricedConfig) -> AsyncIterator[Results]:
        link = await open_link(nats_url, "elsewhere")
        yield store(link, priced)
        await link.close()


class TestTokens:
    async def test_a_signed_address_opens_one_object_until_it_expires(self, results: JetStreamResults) -> None:
        """PRICED-81, PRICED-212, PRICED-213"""
        path = await results.signed_url(KEY, 1000)
        assert path.startswith("/v1/results/")
        token = path.removeprefix("/v1/results/")
        assert results.opens(token, 999) == KEY
        assert results.opens(token, 1000) is None
        head, _, signature = token.partition(".")
        other = (await results.signed_url(KEY + "x", 1000)).removeprefix("/v1/results/")
        for forged in (f"{other.partition('.')[0]}.{signature}", f"{head}.", head, "", KEY, token[:-1] + "_"):
            assert results.opens(forged, 0) is None

    async def test_another_secret_opens_nothing(
        self, results: JetStreamResults, link: Link, priced: PricedConfig
    ) -> None:
        """PRICED-81"""
        token = (await results.signed_url(KEY, 1000)).removeprefix("/v1/results/")
        assert store(link, priced, b"another").opens(token, 0) is None

    async def test_without_a_secret_nothing_is_signed(self, link: Link, priced: PricedConfig) -> None:
        worker = store(link, priced, b"")
        with pytest.raises(ValueError, match="secret"):
            await worker.signed_url(KEY, 1000)
        assert worker.opens("a.b", 0) is None


class TestKeeping:
    async def test_results_expire_with_the_retention(self, results: Results, link: Link, priced: PricedConfig) -> None:
        """PRICED-167, PRICED-214: broken uploads go with them, since every message of the store does."""
        config = (await stream_of(link, priced.results_bucket))["config"]
        assert config["max_age"] == 30 * 86_400 * SECOND
        assert results.bucket == priced.results_bucket

    async def test_a_retention_that_grows_is_followed(self, results: Results, link: Link, priced: PricedConfig) -> None:
        """PRICED-167"""
        await put(results, b"one")
        for days, kept in ((40, 40), (20, 40)):
            await store(link, replace(priced, priced_retention_sec=days * 86_400)).start()
            config = (await stream_of(link, priced.results_bucket))["config"]
            assert config["max_age"] == kept * 86_400 * SECOND
        assert await results.head(KEY) is not None

    async def test_a_result_is_gone_after_its_time(self, link: Link, priced: PricedConfig) -> None:
        """PRICED-214"""
        results = store(link, replace(priced, priced_retention_sec=1))
        await results.start()
        await put(results, b"one")

        async def gone() -> bool:
            return await results.head(KEY) is None and await results.get(KEY) is None

        await eventually(gone)


@pytest.fixture
async def faulty(nats_url: str) -> AsyncIterator[FaultyLink]:
    link = await open_faulty_link(nats_url, HASTY)
    yield link
    await link.close()


class TestFailing:
    @pytest.mark.parametrize("faults", [["before"], ["after"], ["", "before"], ["", "after"], ["", "unheard"]])
    async def test_a_put_that_fails_is_whole_or_not_there_and_may_be_repeated(
        self, results: Results, faulty: FaultyLink, priced: PricedConfig, faults: list[str]
    ) -> None:
        """PRICED-208"""
        writer = store(faulty, priced)
        faulty.faults.extend(faults)
        with contextlib.suppress(DependencyUnavailable):
            await put(writer, b"one")
        found = await results.get(KEY)
        assert found is None or found[0] == b"one"
        faulty.faults.clear()
        await put(writer, b"one")
        found = await results.get(KEY)
        assert found is not None
        assert found[0] == b"one"

    async def test_a_writer_that_dies_midway_leaves_nothing_to_read(
        self, results: Results, link: Link, priced: PricedConfig, nats_url: str
    ) -> None:
        """PRICED-208"""
        dying = await open_link(nats_url, "dying")
        putting = asyncio.create_task(put(store(dying, priced), bytes(8_000_000)))

        async def has_begun() -> bool:
            return bool((await stream_of(link, priced.results_bucket))["state"]["messages"])

        await eventually(has_begun)
        putting.cancel()
        await dying.close()
        await asyncio.gather(putting, return_exceptions=True)
        assert await results.head(KEY) is None

    async def test_a_damaged_result_is_not_a_missing_one(
        self, results: Results, link: Link, priced: PricedConfig, caplog: pytest.LogCaptureFixture
    ) -> None:
        """PRICED-171, PRICED-211"""
        await put(results, b"one")
        info = await link.api(f"STREAM.INFO.OBJ_{priced.results_bucket}", {"subjects_filter": ">"}, dict[str, Any])
        (meta,) = [subject for subject in info["state"]["subjects"] if ".M." in subject]
        await link.store(meta, b'{"name":', {"Nats-Rollup": "sub"})
        with pytest.raises(DependencyUnavailable):
            await results.head(KEY)
        with pytest.raises(DependencyUnavailable, match=r"cannot read a result: Corrupt$") as caught:
            await results.get(KEY)
        assert caught.value.__suppress_context__
        assert [each.exc_info for each in caplog.records if each.levelname == "ERROR"] == [None, None], "no words of it"

    async def test_an_outage_is_not_a_missing_result(self, own_nats_server: NatsServer, priced: PricedConfig) -> None:
        """PRICED-211"""
        link = await open_link(own_nats_server.url, "tests", HASTY)
        results = store(link, priced)
        await results.start()
        await put(results, b"one")
        own_nats_server.kill()
        await eventually(lambda: not link.is_up)
        began = time.monotonic()
        said = await asyncio.gather(
            results.head(KEY),
            results.get(KEY),
            put(results, b"one"),
            results.ping(),
            results.start(),
            return_exceptions=True,
        )
        assert all(isinstance(each, DependencyUnavailable) for each in said), said
        assert time.monotonic() - began < 60
        own_nats_server.start()
        await eventually(lambda: link.is_up)
        assert await results.head(KEY) is not None
        await link.close()

    async def test_a_store_that_is_gone_is_not_a_missing_result(
        self, results: Results, link: Link, priced: PricedConfig
    ) -> None:
        """PRICED-211"""
        await link.api(f"STREAM.DELETE.OBJ_{priced.results_bucket}", {}, dict[str, Any])
        with pytest.raises(DependencyUnavailable):
            await results.head(KEY)
        with pytest.raises(DependencyUnavailable):
            await results.ping()


class TestTheSecret:
    async def test_every_gateway_has_the_same(
        self, link: Link, config: NatsBackendConfig, priced: PricedConfig
    ) -> None:
        """PRICED-81: of several who draw one at once, one wins; and it survives a restart."""
        drawn = await asyncio.gather(*(signing_secret(link, config, priced) for _ in range(8)))
        assert len(set(drawn)) == 1
        assert len(drawn[0]) == 32
        assert await signing_secret(link, config, priced) == drawn[0]
        other = replace(priced, results_bucket=unique("results"))
        assert await signing_secret(link, config, other) != drawn[0]

    async def test_with_a_pepper_the_store_alone_does_not_give_it_away(
        self, link: Link, config: NatsBackendConfig, priced: PricedConfig
    ) -> None:
        plain = await signing_secret(link, config, priced)
        peppered = await signing_secret(link, replace(config, auth_pepper="p" * 32), priced)
        kept = await Bucket(link, SECRETS_BUCKET).get(priced.results_bucket)
        assert kept is not None
        assert len({plain, peppered, kept.value}) == 3

    async def test_a_setting_comes_first(self, link: Link, config: NatsBackendConfig, priced: PricedConfig) -> None:
        await signing_secret(link, config, replace(priced, results_bucket=unique("results")))  # the bucket is there
        own = replace(priced, results_secret="a-long-random-text")
        assert await signing_secret(link, config, own) == b"a-long-random-text"
        assert await Bucket(link, SECRETS_BUCKET).get(priced.results_bucket) is None

    async def test_what_is_no_secret_is_not_used(
        self, link: Link, config: NatsBackendConfig, priced: PricedConfig
    ) -> None:
        await signing_secret(link, config, priced)
        bucket = Bucket(link, SECRETS_BUCKET)
        entry = await bucket.get(priced.results_bucket)
        assert entry is not None
        assert await bucket.write(priced.results_bucket, b"", entry.revision) is not None
        with pytest.raises(Corrupt):
            await signing_secret(link, config, priced)


def test_only_what_lies_in_nats_is_made_there() -> None:
    config = NatsBackendConfig()

    def names(**more: str) -> set[str]:
        return {resource.name for resource in priced_resources(config, PricedConfig(**more))}  # type: ignore[arg-type]

    always = {"KV_pyoco_priced"}
    objects = {"OBJ_dpp-results", "OBJ_dpp-inputs", "KV_pyoco_secrets"}
    assert names() == {"DPP_RUNS", "DPP_RUNS_DLQ"} | objects | always
    assert names(pack_queue_url="sqs://dpp-runs") == objects | always
    assert names(results_url="s3://dpp-results") == {"DPP_RUNS", "DPP_RUNS_DLQ"} | always
