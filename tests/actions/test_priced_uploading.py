"""Uploads of inputs: whole or not at all, within the tenant's room, and nothing is left of what failed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.priced.upload_input import StoredInput, Uploaded, upload_input
from pyoco_server.core.priced.constants import JANITOR_BATCH
from pyoco_server.core.priced.upload import PENDING_SECONDS, ROOM_BYTES_MIN, NewUpload
from pyoco_server.errors import DependencyUnavailable, Refused
from pyoco_server.loops.priced.retainer import Retainer
from pyoco_server.ports.ledger.port import LedgerTx
from pyoco_server.ports.priced import Priced
from support.priced.faults import AFTER, BEFORE, Trouble, with_trouble
from support.priced.stacks import ACME, POSTGRES, SQLITE, Killed, Stack, open_stack


@pytest.fixture(params=[SQLITE, POSTGRES])
async def both(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """JetStream and S3 beneath."""
    async with open_stack(request.param, request) as stack:
        yield stack


@pytest.fixture
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(SQLITE, request) as stack:
        yield stack


def a_file(data: bytes = b"an image", name: str = "scan.png") -> StoredInput:
    async def chunks() -> AsyncIterator[bytes]:
        yield data

    return StoredInput(
        name=name,
        content_type="image/png",
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        chunks=chunks,
    )


async def used(stack: Stack, tenant_id: str = ACME) -> int:
    return await stack.priced.ledger.read(lambda tx: tx.uploads.used_bytes(tenant_id))


async def rows(stack: Stack) -> list[str]:
    """The keys of all uploads, whatever became of them."""
    before = stack.skew.us
    stack.skew.move(10 * stack.priced.config.priced_retention_sec)
    found = await stack.priced.ledger.read(lambda tx: tx.uploads.expired(1000))
    stack.skew.us = before
    return [row.key for row in found]


async def retained(stack: Stack) -> None:
    await Retainer(stack.priced).turn()


def limited(priced: Priced, tenant_bytes_max: int) -> Priced:
    return replace(priced, config=replace(priced.config, pack_input_tenant_max_bytes=tenant_bytes_max))


async def test_a_file_is_stored_under_its_tenant_and_found_again(both: Stack) -> None:
    """PRICED-147, PRICED-169"""
    first = await upload_input(both.priced, ACME, a_file())
    assert first.is_new
    assert first.upload.key == f"dpp/{ACME}/{first.upload.upload_id}/scan.png"
    head = await both.priced.inputs.head(first.upload.key)
    assert head is not None
    assert (head.size_bytes, head.content_type, head.sha256) == (8, "image/png", a_file().sha256)
    assert await upload_input(both.priced, ACME, a_file(name="other.png")) == Uploaded(first.upload, is_new=False)
    other = await upload_input(both.priced, "bert", a_file())
    assert other.is_new, "what another tenant has is nobody's business"
    assert other.upload.key.startswith("dpp/bert/")
    assert await used(both) == ROOM_BYTES_MIN


async def test_the_same_bytes_from_two_gateways_at_once_are_one_file(both: Stack) -> None:
    outcomes = await asyncio.gather(*(upload_input(both.priced, ACME, a_file()) for _ in range(6)))
    assert len({each.upload.upload_id for each in outcomes}) == 1
    assert sum(each.is_new for each in outcomes) == 1
    assert await used(both) == ROOM_BYTES_MIN
    assert await rows(both) == [outcomes[0].upload.key]
    assert await both.priced.inputs.head(outcomes[0].upload.key) is not None


async def test_sixteen_at_once_never_have_more_than_the_tenants_room(both: Stack) -> None:
    priced = limited(both.priced, 5 * ROOM_BYTES_MIN)
    files = [a_file(os.urandom(100)) for _ in range(16)]
    outcomes = await asyncio.gather(*(upload_input(priced, ACME, file) for file in files), return_exceptions=True)
    stored = [each for each in outcomes if isinstance(each, Uploaded)]
    assert len(stored) == 5
    assert {type(each) for each in outcomes} == {Uploaded, Refused}
    assert await used(both) == 5 * ROOM_BYTES_MIN
    assert sorted(await rows(both)) == sorted(each.upload.key for each in stored), "who is refused leaves no row"


async def test_a_refusal_says_what_is_used_and_when_room_comes_back(stack: Stack) -> None:
    priced = limited(stack.priced, 100_000)
    never = r"take 0 of 100000 bytes, and this one would take 100001: it never fits"
    with pytest.raises(Refused, match=never):
        await upload_input(priced, ACME, a_file(bytes(100_001)))
    await upload_input(priced, ACME, a_file(b"12345678"))
    with pytest.raises(Refused, match=never.replace("take 0", "take 65536")):
        await upload_input(priced, ACME, a_file(bytes(100_001)))
    full = r"take 65536 of 100000 bytes, and this one would take 65536; room comes back from \S+T\S+Z on"
    with pytest.raises(Refused, match=full):
        await upload_input(priced, ACME, a_file(b"abc"))
    stack.skew.move(priced.config.priced_retention_sec)
    assert (await upload_input(priced, ACME, a_file(b"abc"))).is_new


async def test_a_file_that_has_vanished_from_its_store_is_stored_anew(stack: Stack) -> None:
    first = await upload_input(stack.priced, ACME, a_file())
    await stack.priced.inputs.delete(first.upload.key)
    again = await upload_input(stack.priced, ACME, a_file())
    assert again.is_new
    assert again.upload.key != first.upload.key
    assert await used(stack) == ROOM_BYTES_MIN


async def test_files_go_when_their_time_is_over(both: Stack) -> None:
    """PRICED-164: with their rows, and no earlier"""
    old = await upload_input(both.priced, ACME, a_file())
    both.skew.move(both.priced.config.priced_retention_sec - 60)
    new = await upload_input(both.priced, ACME, a_file())
    assert new.is_new, "a minute is less than half of its time"
    await retained(both)
    assert await both.priced.inputs.head(old.upload.key) is not None
    both.skew.move(60)
    await retained(both)
    assert await both.priced.inputs.head(old.upload.key) is None
    assert await both.priced.inputs.head(new.upload.key) is not None
    assert await rows(both) == [new.upload.key]


@pytest.mark.parametrize("at", ["upload.after_reserve", "upload.after_store"])
async def test_a_gateway_that_dies_half_way_leaves_nothing_after_an_hour(stack: Stack, at: str) -> None:
    stack.points.kill_at = at
    ledger = stack.priced.ledger

    class Gone:
        """A dead process says nothing more."""

        def __getattr__(self, name: str) -> Any:
            if name == "transact" and stack.points.kill_at is None:
                raise Killed
            return getattr(ledger, name)

    with pytest.raises(Killed):
        await upload_input(replace(stack.priced, ledger=Gone()), ACME, a_file())
    (key,) = await rows(stack)
    assert await used(stack) == ROOM_BYTES_MIN
    assert (await stack.priced.inputs.head(key) is not None) == (at == "upload.after_store")
    await retained(stack)
    assert await rows(stack) == [key], "it might still be under way"
    stack.skew.move(PENDING_SECONDS)
    await retained(stack)
    assert await rows(stack) == []
    assert await stack.priced.inputs.head(key) is None


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
async def test_whichever_call_fails_a_repeat_is_served_and_nothing_leaks(stack: Stack, fate: str) -> None:
    """Every call in turn, before and after its effect"""
    calls = Trouble()
    await upload_input(with_trouble(stack.priced, calls), "counted", a_file())
    assert calls.calls == ["ledger.read", "ledger.transact", "inputs.put", "ledger.transact"]
    for number in range(len(calls.calls)):
        tenant_id = f"t{number}"
        with pytest.raises(DependencyUnavailable):
            await upload_input(with_trouble(stack.priced, Trouble(at=number, fate=fate)), tenant_id, a_file())
        again = await upload_input(stack.priced, tenant_id, a_file())
        assert again.is_new == (number < 3 or fate == BEFORE), "a confirm that happened has happened"
        assert await used(stack, tenant_id) == ROOM_BYTES_MIN, "what failed takes no room"
        stack.skew.move(PENDING_SECONDS)
        await retained(stack)
        assert [key for key in await rows(stack) if f"/{tenant_id}/" in key] == [again.upload.key]
        assert await stack.priced.inputs.head(again.upload.key) is not None


async def test_a_store_that_does_not_delete_is_asked_again(stack: Stack) -> None:
    upload = (await upload_input(stack.priced, ACME, a_file())).upload
    stack.skew.move(stack.priced.config.priced_retention_sec)
    for fate in (BEFORE, AFTER):
        troubled = with_trouble(stack.priced, Trouble(plan={"inputs.delete": [fate]}))
        await Retainer(troubled).turn()
        assert await rows(stack) == [upload.key]
    await retained(stack)
    assert await rows(stack) == []


class _Undeletable:
    """A store that does not delete some of its files, or answers nothing more at all."""

    def __init__(self, inputs: Any, keys: set[str]) -> None:
        self._inputs, self.keys, self.is_away, self.asked = inputs, keys, False, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inputs, name)

    async def delete(self, key: str) -> None:
        self.asked += 1
        if self.is_away or key in self.keys:
            raise DependencyUnavailable("cannot read an input: Corrupt")
        await self._inputs.delete(key)

    async def ping(self) -> None:
        if self.is_away:
            raise DependencyUnavailable("cannot reach the store of inputs")


def _warnings(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(each)["pyoco_fields"] for each in caplog.records if each.getMessage().startswith("inputs were not")]


async def test_files_that_cannot_be_deleted_are_in_nobodys_way(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """More of them than a batch has; told once in a turn, and tried again in the next"""
    keys = await _reserve_many(stack, JANITOR_BATCH + 30)
    stuck = set(keys[: JANITOR_BATCH + 10])
    store = _Undeletable(stack.priced.inputs, stuck)
    stack.skew.move(PENDING_SECONDS)
    for _ in range(2):
        caplog.clear()
        store.asked = 0
        await Retainer(replace(stack.priced, inputs=store)).turn()
        assert set(await rows(stack)) == stuck
        assert [each["count"] for each in _warnings(caplog)] == [len(stuck)]
    assert store.asked == len(stuck), "each once in a turn"
    store.keys.clear()
    await Retainer(replace(stack.priced, inputs=store)).turn()
    assert await rows(stack) == []


async def test_a_store_that_is_away_or_deletes_nothing_is_not_asked_for_all(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    keys = await _reserve_many(stack, 2 * JANITOR_BATCH + 50)
    store = _Undeletable(stack.priced.inputs, set(keys))
    stack.skew.move(PENDING_SECONDS)
    store.is_away = True
    await Retainer(replace(stack.priced, inputs=store)).turn()
    assert store.asked == 8
    store.is_away, store.asked = False, 0
    await Retainer(replace(stack.priced, inputs=store)).turn()
    assert store.asked == 2 * JANITOR_BATCH
    assert [each["count"] for each in _warnings(caplog)] == [8, 2 * JANITOR_BATCH]
    assert len(await rows(stack)) == len(keys)


async def test_an_upload_that_took_longer_than_an_hour_is_not_promised(stack: Stack) -> None:
    async def late() -> None:
        stack.skew.move(PENDING_SECONDS)
        await retained(stack)

    stack.points.meanwhile["upload.after_store"] = late
    with pytest.raises(DependencyUnavailable, match="too long"):
        await upload_input(stack.priced, ACME, a_file())
    assert await rows(stack) == []


async def _reserve_many(stack: Stack, count: int) -> list[str]:
    """Their keys, the oldest first."""
    keys = []

    def make(tx: LedgerTx) -> None:
        for _ in range(count):
            upload_id = stack.priced.new_id()
            key, digest = f"dpp/{ACME}/{upload_id}/file", upload_id.replace("-", "") * 2
            keys.append(key)
            tx.uploads.reserve(
                NewUpload(
                    upload_id=upload_id,
                    tenant_id=ACME,
                    key=key,
                    sha256=digest,
                    size_bytes=1,
                    content_type="image/png",
                ),
                10**9,
            )

    await stack.priced.ledger.transact(make)
    return keys


async def test_one_turn_removes_more_than_one_batch(stack: Stack) -> None:
    await _reserve_many(stack, JANITOR_BATCH + 5)
    stack.skew.move(PENDING_SECONDS)
    await retained(stack)
    assert await rows(stack) == []
