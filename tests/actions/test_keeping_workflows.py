"""A submitted flow.yaml is kept under its sha256: once, for long enough, and before its run is recorded."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.objects import put, read_all
from pyoco_server.actions import keep_workflow as module
from pyoco_server.actions.keep_workflow import keep_workflow
from pyoco_server.actions.submit_once import submit_once
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Caller, Submission
from pyoco_server.errors import ObjectNotFound, Unavailable
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.objects.kept import ConfirmedObjects, Sight
from support.backends import Clock, a_submission
from support.faulty_ports import AFTER, BEFORE, UNHEARD, Trouble, with_trouble
from support.gateway_backends import opened_gateway_backend
from support.gateways import stock_of

pytestmark = pytest.mark.virtual_time

TEXT = "\ufeff# 日本語\r\nflow: {graph: a}\n"
SHA256 = hashlib.sha256(TEXT.encode()).hexdigest()
RETENTION = 5000.0
ASK: Submission = a_submission(workflow_yaml=TEXT, workflow_yaml_sha256=SHA256, workflow_yaml_bytes=len(TEXT.encode()))


@pytest.fixture
async def backend(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[GatewayBackend]:
    config = replace(config, runs_retention_sec=RETENTION)
    async with opened_gateway_backend(config, tmp_path) as backend:
        yield replace(backend, clock=Clock(time.time()))  # the store's own clock is a part of this


def counted(backend: GatewayBackend, trouble: Trouble) -> GatewayBackend:
    return with_trouble(backend, trouble, "runs", "queue", "workflows")


async def keep(backend: GatewayBackend, text: str = TEXT) -> list[str]:
    """What it took."""
    trouble = Trouble()
    await keep_workflow(counted(backend, trouble), hashlib.sha256(text.encode()).hexdigest(), text)
    return trouble.calls


LOOK, STORE = "workflows.info", "workflows.put"


class TestKeeping:
    async def test_the_bytes_lie_under_their_digest(self, backend: GatewayBackend) -> None:
        """FLOW-173: the digest is that of the bytes as received."""
        assert await keep(backend) == [LOOK, STORE]
        info = await backend.workflows.info(SHA256)
        assert await read_all(backend.workflows, info) == TEXT.encode()

    async def test_a_known_file_costs_nothing(self, backend: GatewayBackend) -> None:
        await keep(backend)
        assert await keep(backend) == []
        assert await keep(backend, "another") == [LOOK, STORE]
        assert await keep(backend) == []

    async def test_a_file_that_another_gateway_stored_costs_a_look(self, backend: GatewayBackend) -> None:
        await keep(backend)
        other = replace(backend, kept_workflows=ConfirmedObjects())
        assert await keep(other) == [LOOK]
        assert await keep(other) == []

    async def test_the_store_is_asked_again_after_a_while(self, backend: GatewayBackend) -> None:
        """An operator may have emptied it."""
        await keep(backend)
        await backend.workflows.delete(SHA256)
        assert await keep(backend) == []
        later = replace(backend, clock=Clock(backend.clock() + 700))
        assert await keep(later) == [LOOK, STORE]
        assert await keep(replace(later, clock=Clock(later.clock() + 700))) == [LOOK]

    async def test_a_file_older_than_the_runs_retention_is_stored_anew(
        self, backend: GatewayBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Files are removed after twice that time: a run of today must outlive its file never."""
        monkeypatch.setattr(module, "_TRUST_SECONDS", 10 * RETENTION)
        await keep(backend)
        first = await backend.workflows.info(SHA256)
        soon = replace(backend, clock=Clock(backend.clock() + RETENTION - 10))
        assert await keep(soon) == []
        assert await keep(replace(soon, kept_workflows=ConfirmedObjects())) == [LOOK]
        late = replace(backend, clock=Clock(backend.clock() + RETENTION + 10))
        assert await keep(late) == [LOOK, STORE]
        assert await keep(replace(late, kept_workflows=ConfirmedObjects())) == [LOOK, STORE]
        assert (await backend.workflows.info(SHA256)).object_id != first.object_id

    async def test_without_retention_a_file_is_good_for_ever(self, backend: GatewayBackend) -> None:
        config = replace(backend.config, runs_retention_sec=0)
        await keep(backend)
        century = replace(backend, config=config, clock=Clock(backend.clock() + 3e9), kept_workflows=ConfirmedObjects())
        assert await keep(century) == [LOOK]

    async def test_something_else_under_the_name_is_replaced(self, backend: GatewayBackend) -> None:
        await put(backend.workflows, SHA256, b"forged")
        assert await keep(backend) == [LOOK, STORE]
        assert await read_all(backend.workflows, await backend.workflows.info(SHA256)) == TEXT.encode()

    async def test_of_many_at_once_one_stores_it(self, backend: GatewayBackend) -> None:
        calls = await asyncio.gather(*(keep(backend) for _ in range(50)))
        assert sorted(calls, key=len)[-2:] == [[], [LOOK, STORE]]

    async def test_one_who_gives_up_does_not_stop_the_others(self, backend: GatewayBackend) -> None:
        trouble = Trouble({LOOK: [BEFORE]})
        troubled = counted(backend, trouble)
        outcomes = await asyncio.gather(
            *(keep_workflow(troubled, SHA256, TEXT) for _ in range(5)), return_exceptions=True
        )
        assert [type(each) for each in outcomes] == [Unavailable, *[type(None)] * 4]
        assert trouble.calls == [LOOK, LOOK, STORE]


class TestTrouble:
    @pytest.mark.parametrize("fate", [BEFORE, AFTER, UNHEARD])
    async def test_silence_while_nats_is_there_is_waited_out(self, backend: GatewayBackend, fate: str) -> None:
        """DESIGN 9.16: an election."""
        trouble = Trouble({STORE: [fate, fate]})
        await keep_workflow(counted(backend, trouble), SHA256, TEXT)
        assert trouble.calls == [LOOK, STORE, STORE, STORE]

    @pytest.mark.parametrize("call", [LOOK, STORE])
    async def test_what_cannot_be_kept_is_not_accepted(self, backend: GatewayBackend, link: Link, call: str) -> None:
        """FLOW-47: nothing is recorded, nothing is queued."""
        before = await stock_of(backend.config, link)
        trouble = Trouble({call: [UNHEARD]})
        down = replace(counted(backend, trouble), is_up=lambda: False)
        with pytest.raises(Unavailable):
            await submit_once(down, Caller(), ASK)
        assert not {"runs.create", "queue.put"} & set(trouble.calls)
        after = await stock_of(backend.config, link)
        assert after == before
        with pytest.raises(ObjectNotFound):
            await backend.workflows.info(SHA256)

    async def test_patience_ends(self, backend: GatewayBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_UNANSWERED_SECONDS", 0.1)
        trouble = Trouble({STORE: [BEFORE] * 10})
        with pytest.raises(Unavailable):
            await keep_workflow(counted(backend, trouble), SHA256, TEXT)
        assert trouble.calls == [LOOK, STORE, STORE]

    async def test_the_file_is_kept_before_its_run_is_recorded(self, backend: GatewayBackend) -> None:
        trouble = Trouble()
        await submit_once(counted(backend, trouble), Caller(), ASK)
        assert trouble.calls == [LOOK, STORE, "runs.create", "queue.put"]


class TestMemory:
    def test_it_is_bounded_and_the_longest_unused_goes_first(self) -> None:
        kept = ConfirmedObjects(count_max=3)
        for n in range(3):
            kept.saw(str(n), Sight(n, n))
        assert kept.find("0") == Sight(0, 0)
        kept.saw("3", Sight(3, 3))
        assert [kept.find(str(n)) is not None for n in range(4)] == [True, False, True, True]
        kept.saw("0", Sight(9, 9))
        assert kept.find("0") == Sight(9, 9)

    async def test_nobody_waits_for_another_name_and_nothing_is_left(self) -> None:
        kept, order = ConfirmedObjects(), []

        async def one(name: str, n: int) -> None:
            async with kept.alone(name):
                order.append((name, n, "in"))
                await asyncio.sleep(0)
                order.append((name, n, "out"))

        await asyncio.gather(*(one(name, n) for n in range(3) for name in "ab"))
        for name in "ab":
            mine = [each[1:] for each in order if each[0] == name]
            assert mine == [(n, step) for n in range(3) for step in ("in", "out")]
        assert order[1][0] == "b"
        assert not kept._gates
