"""Receipts in JetStream: the contract, lost answers, expiry, and bytes that are no receipt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from contracts.receipts import KEY, MakeReceipts, ReceiptsContract, a_run_id, facts
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Corrupt, NotStored, Unavailable
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.receipts.jetstream import JetStreamReceipts
from support.faults import FaultyLink, open_faulty_link
from support.servers import config_for
from support.waiting import eventually


class TestJetStreamReceipts(ReceiptsContract):
    @pytest.fixture
    def make_receipts(self, link: Link, prepared: NatsBackendConfig) -> MakeReceipts:
        return lambda: JetStreamReceipts(link, prepared.receipts_kv_bucket)


@pytest.fixture
def bucket(link: Link, prepared: NatsBackendConfig) -> Bucket:
    return Bucket(link, prepared.receipts_kv_bucket)


@pytest.fixture
async def faulty(nats_url: str) -> AsyncIterator[FaultyLink]:
    link = await open_faulty_link(nats_url)
    yield link
    await link.close()


class TestLostAnswers:
    @pytest.mark.parametrize("fault", ["before", "after", "unheard"])
    async def test_a_claim_knows_its_own_receipt(
        self, faulty: FaultyLink, prepared: NatsBackendConfig, fault: str
    ) -> None:
        """A write without an answer is repeated; whether it had worked is found out by reading."""
        receipts, mine = JetStreamReceipts(faulty, prepared.receipts_kv_bucket), a_run_id()
        faulty.faults.append(fault)
        made = await receipts.claim(KEY, mine, "mark")
        assert facts(made) == (mine, "mark")
        assert await receipts.claim(KEY, a_run_id(), "mark") == made

    @pytest.mark.parametrize("fault", ["before", "after", "unheard"])
    async def test_a_replacement_knows_its_own_receipt(
        self, faulty: FaultyLink, prepared: NatsBackendConfig, fault: str
    ) -> None:
        receipts, mine = JetStreamReceipts(faulty, prepared.receipts_kv_bucket), a_run_id()
        first = await receipts.claim(KEY, a_run_id(), "mark")
        faulty.faults.append(fault)
        made = await receipts.replace(KEY, mine, first)
        assert facts(made) == (mine, "mark")
        assert await receipts.claim(KEY, a_run_id(), "mark") == made

    async def test_what_cannot_be_found_out_is_told(self, nats_url: str, prepared: NatsBackendConfig) -> None:
        link = await open_faulty_link(nats_url, Patience(unanswered_seconds=0.0))
        receipts = JetStreamReceipts(link, prepared.receipts_kv_bucket)
        link.faults.append("unheard")
        with pytest.raises(NotStored):
            await receipts.claim(KEY, a_run_id(), "mark")
        link.faults.append("after")
        mine = a_run_id()
        with pytest.raises(Unavailable):
            await receipts.claim(KEY, mine, "mark")
        # Asking again finds out.
        assert facts(await receipts.claim(KEY, a_run_id(), "mark")) == (mine, "mark")
        await link.close()


class TestStore:
    async def test_a_receipt_expires_and_the_key_is_free_again(self, link: Link, nats_url: str) -> None:
        """Also under the hands of somebody who wants to replace it."""
        config = config_for(nats_url, idempotency_ttl_sec=1.0)
        resources = [item for item in resources_of(config) if item.name == f"KV_{config.receipts_kv_bucket}"]
        await ensure(link, resources)
        receipts, second, third = JetStreamReceipts(link, config.receipts_kv_bucket), a_run_id(), a_run_id()
        first = await receipts.claim(KEY, a_run_id(), "mark")
        seen = Bucket(link, config.receipts_kv_bucket)

        async def is_gone() -> bool:
            return await seen.get(KEY) is None

        await eventually(is_gone)
        assert facts(await receipts.replace(KEY, second, first)) == (second, "mark")
        await eventually(is_gone)
        assert facts(await receipts.claim(KEY, third, "another mark")) == (third, "another mark")
        await link.api(f"STREAM.DELETE.{resources[0].name}", {}, dict[str, Any])

    def test_a_receipt_never_outlives_its_run(self) -> None:
        """A run that has left by retention must not look like one that never was."""
        for ttl, retention, expected in ((100.0, 50.0, 50), (100.0, 0.0, 100), (100.0, 500.0, 100)):
            config = config_for("nats://x", idempotency_ttl_sec=ttl, runs_retention_sec=retention)
            [resource] = [item for item in resources_of(config) if item.name == f"KV_{config.receipts_kv_bucket}"]
            assert resource.config["max_age"] == expected * 1_000_000_000

    async def test_a_deleted_receipt_frees_its_key(
        self, link: Link, prepared: NatsBackendConfig, bucket: Bucket
    ) -> None:
        receipts, second = JetStreamReceipts(link, prepared.receipts_kv_bucket), a_run_id()
        first = await receipts.claim(KEY, a_run_id(), "mark")
        assert await bucket.delete(KEY, first.revision)
        assert facts(await receipts.claim(KEY, second, "mark")) == (second, "mark")

    async def test_nothing_is_stored_but_what_was_promised(
        self, link: Link, prepared: NatsBackendConfig, bucket: Bucket
    ) -> None:
        run_id = a_run_id()
        await JetStreamReceipts(link, prepared.receipts_kv_bucket).claim(KEY, run_id, "mark")
        found = await bucket.get(KEY)
        assert found is not None
        assert json.loads(found.value or b"") == {"run_id": run_id, "fingerprint": "mark"}

    async def test_a_newer_version_may_know_more(self, link: Link, prepared: NatsBackendConfig, bucket: Bucket) -> None:
        run_id = a_run_id()
        stored = {"run_id": run_id, "fingerprint": "mark", "answer": {"x": 1}}
        await bucket.write(KEY, json.dumps(stored).encode(), 0)
        receipts = JetStreamReceipts(link, prepared.receipts_kv_bucket)
        assert facts(await receipts.claim(KEY, a_run_id(), "mark")) == (run_id, "mark")

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{",
            b"[]",
            b"\xff\xfe",
            b"{}",
            b'{"run_id": 5, "fingerprint": "x"}',
            b'{"run_id": "*", "fingerprint": "x"}',
        ],
    )
    async def test_bytes_that_are_no_receipt_are_told(
        self, link: Link, prepared: NatsBackendConfig, bucket: Bucket, data: bytes
    ) -> None:
        """What it promises becomes the key of a record: it must be a run id."""
        await bucket.write(KEY, data, 0)
        with pytest.raises(Corrupt):
            await JetStreamReceipts(link, prepared.receipts_kv_bucket).claim(KEY, a_run_id(), "mark")
