"""Cancelling and reading, and the rights to do so."""

from __future__ import annotations

import contextlib
import logging
import secrets
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.authenticate import NOBODY, authenticate
from pyoco_server.actions.beat import beat_run
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.actions.read import read_run, worker_facts
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.snapshot import encode, to_snapshot
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import KeyMissing, KeyRefused, RunNotFound, Unavailable
from pyoco_server.ports.backend import Backend, GatewayBackend
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring
from support.backends import ANNA, Clock, a_submission, recorded, run_now
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble
from support.waiting import eventually


@pytest.fixture
async def run(backend: Backend) -> Run:
    return (await recorded(backend))[0].run


@pytest.fixture
async def held(backend: Backend) -> FlowAttempt:
    _, job = await recorded(backend)
    held = await claim_run(backend, job, ANNA, first_delivery=True)
    assert isinstance(held, FlowAttempt)
    return held


class TestCancelling:
    async def test_marks_a_run_that_waits_or_runs(
        self, backend: Backend, clock: Clock, run: Run, held: FlowAttempt
    ) -> None:
        """FLOW-16, FLOW-175"""
        for run_id in (run.run_id, held.run.run_id):
            clock.now += 1
            asked = (await cancel(backend, Caller(), run_id, "why")).run
            assert asked == await run_now(backend, run_id)
            assert (asked.status, asked.cancel_requested_at, asked.cancel_reason) == (
                RunState.CANCELLING,
                clock.now,
                "why",
            )

    async def test_names_the_key_that_asked(self, backend: Backend) -> None:
        """FLOW-175, FLOW-272: the run may be another key's of the same tenant."""
        stored = await submit(backend, Caller("acme", "key-1"), a_submission())
        asked = await cancel(backend, Caller("acme", "key-2"), stored.run.run_id, None)
        assert (asked.run.api_key_id, asked.run.cancel_requested_by) == ("key-1", "key-2")
        again = await cancel(backend, Caller("acme", "key-1"), stored.run.run_id, None)
        assert again.run.cancel_requested_by == "key-2"

    @pytest.mark.parametrize(
        ("room", "reason", "key"), [(5000, "w" * 4000, "k" * 300), (600, None, "k" * 300), (100, None, None)]
    )
    async def test_counts_where_there_is_no_room_for_its_reason_nor_for_its_key(
        self, backend: Backend, room: int, reason: str | None, key: str | None
    ) -> None:
        """FLOW-175: the wish counts. The record is as full as it can be."""
        stored = (await recorded(backend))[0]
        left = backend.config.max_run_snapshot_bytes - len(encode(to_snapshot(stored.run))) - room
        full = await backend.runs.replace(replace(stored.run, params={"x": "y" * (left - 7)}), stored.revision)
        assert isinstance(full, Stored)
        asked = (await cancel(backend, Caller(None, "k" * 300), stored.run.run_id, "w" * 4000)).run
        assert asked == await run_now(backend, stored.run.run_id)
        assert (asked.status, asked.cancel_reason, asked.cancel_requested_by) == (RunState.CANCELLING, reason, key)

    async def test_twice_keeps_the_first_request(self, backend: Backend, clock: Clock, run: Run) -> None:
        """FLOW-177"""
        first = await cancel(backend, Caller(), run.run_id, "first")
        clock.now += 5
        assert await cancel(backend, Caller(), run.run_id, "second") == first

    async def test_a_run_that_has_ended_changes_nothing(self, backend: Backend, held: FlowAttempt) -> None:
        """FLOW-176, FLOW-19"""
        ended = await finish(backend, held, Completed())
        assert isinstance(ended, Ended)
        assert (await cancel(backend, Caller(), held.run.run_id, None)).run == ended.run

    async def test_is_tried_again_when_the_run_moves_on_meanwhile(self, backend: Backend, held: FlowAttempt) -> None:
        """FLOW-178: neither a heartbeat nor an end is wiped out."""

        async def beaten() -> None:
            await beat_run(backend, held, None)

        asked = await cancel(
            with_trouble(backend, Trouble(meanwhile={"runs.find": beaten})), Caller(), held.run.run_id, None
        )
        assert asked.run.status is RunState.CANCELLING

    async def test_loses_to_an_end_that_comes_in_between(self, backend: Backend, held: FlowAttempt) -> None:
        """FLOW-178, FLOW-19"""

        async def ended() -> None:
            assert isinstance(await finish(backend, held, Completed()), Ended)

        trouble = Trouble(meanwhile={"runs.find": ended})
        answer = await cancel(with_trouble(backend, trouble), Caller(), held.run.run_id, None)
        assert answer.run.status is RunState.COMPLETED

    async def test_of_a_run_that_never_stands_still_gives_up(self, backend: Backend, held: FlowAttempt) -> None:
        class Restless(Trouble):
            async def go(self, name: str, call: object) -> object:
                answer = await super().go(name, call)  # type: ignore[arg-type]
                if name == "runs.find":
                    await beat_run(backend, held, None)
                return answer

        with pytest.raises(Unavailable):
            await cancel(with_trouble(backend, Restless()), Caller(), held.run.run_id, None)

    @pytest.mark.parametrize("call", ["runs.find", "runs.replace"])
    @pytest.mark.parametrize("fate", [BEFORE, AFTER])
    async def test_that_fails_may_be_asked_again(self, backend: Backend, run: Run, call: str, fate: str) -> None:
        with pytest.raises(Unavailable):
            await cancel(with_trouble(backend, Trouble({call: [fate]})), Caller(), run.run_id, "once")
        asked = (await cancel(backend, Caller(), run.run_id, "once")).run
        assert (asked.status, asked.cancel_reason) == (RunState.CANCELLING, "once")


class TestReading:
    async def test_finds_a_run_as_it_is_stored(self, backend: Backend, run: Run) -> None:
        assert (await read_run(backend, Caller(), run.run_id)).run == run

    async def test_knows_no_run_by_any_other_name(self, backend: Backend, run: Run) -> None:
        """FLOW-36"""
        hexadecimal = uuid.UUID(run.run_id).hex
        for run_id in ("", "x", "../..", "*", ">", "日本", str(uuid.uuid4()), run.run_id.upper(), hexadecimal):
            for ask in (read_run(backend, Caller(), run_id), cancel(backend, Caller(), run_id, None)):
                with pytest.raises(RunNotFound):
                    await ask

    async def test_and_cancelling_know_only_runs_of_ones_own_tenant(self, backend: Backend, run: Run) -> None:
        """FLOW-188, FLOW-273, FLOW-275"""
        mine = (await submit(backend, Caller("acme", "k"), a_submission())).run
        for run_id in (mine.run_id, run.run_id):  # of a tenant, and of none
            for ask in (read_run(backend, Caller("other"), run_id), cancel(backend, Caller("other"), run_id, None)):
                with pytest.raises(RunNotFound):
                    await ask
        assert (await read_run(backend, Caller("acme", "another key"), mine.run_id)).run == mine
        assert await run_now(backend, mine.run_id) == mine

    async def test_a_withdrawn_run_is_no_run(self, backend: Backend) -> None:
        stored, job = await recorded(backend)
        await backend.runs.withdraw(job.run_id, stored.revision)
        with pytest.raises(RunNotFound):
            await read_run(backend, Caller(), job.run_id)

    async def test_tells_of_the_worker_what_the_registry_knows(
        self, backend: Backend, clock: Clock, held: FlowAttempt, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-93, FLOW-27, FLOW-29"""
        nothing = await worker_facts(backend, held.run)
        assert nothing is not None
        assert (nothing.alive, nothing.state) == (False, None)
        await backend.registry.announce(
            WorkerRecord(
                worker_id="anna",
                instance_id="a1",
                state=WorkerState.RUNNING,
                tags=("x",),
                last_seen_at=clock.now,
                last_heartbeat_at=clock.now,
            )
        )
        facts = await worker_facts(backend, held.run)
        assert facts is not None
        assert (facts.alive, facts.state, facts.tags, facts.heartbeat_at) == (True, "RUNNING", ("x",), clock.now)
        clock.now += backend.config.worker_disconnect_timeout_sec + 1
        later = await worker_facts(backend, held.run)
        assert later is not None
        assert (later.alive, later.state) == (False, "DISCONNECTED")
        with caplog.at_level(logging.WARNING):
            deaf = with_trouble(backend, Trouble({"registry.find": [BEFORE]}))
            assert await worker_facts(deaf, held.run) is None
        assert caplog.records

    async def test_of_a_run_without_a_worker_asks_nobody(self, backend: Backend, run: Run) -> None:
        trouble = Trouble()
        assert await worker_facts(with_trouble(backend, trouble), run) is None
        assert trouble.calls == []


class TestAuthenticating:
    @pytest.fixture
    async def gateway(self, config: NatsBackendConfig) -> AsyncIterator[GatewayBackend]:
        closed = replace(config, http_auth_mode="api_key", auth_pepper="salt")
        async with wiring.open_gateway_backend(closed) as backend:
            yield backend

    async def test_opens_to_a_key_until_it_is_revoked(self, gateway: GatewayBackend) -> None:
        """FLOW-265, FLOW-270"""
        plain, record = make_key("acme", "salt", 1.0, secrets.token_hex, secrets.token_urlsafe)
        assert await gateway.keys.add(record)
        assert await authenticate(gateway, plain) == Caller("acme", record.key_id)
        await gateway.keys.revoke(record.key_id, 2.0)

        async def is_refused() -> bool:
            with contextlib.suppress(KeyRefused):
                await authenticate(gateway, plain)
                return False
            return True

        await eventually(is_refused, 5.0)

    async def test_refuses_every_other_key_alike(self, gateway: GatewayBackend) -> None:
        plain, record = make_key("acme", "salt", 1.0, secrets.token_hex, secrets.token_urlsafe)
        foreign, foreign_record = make_key("acme", "pepper", 1.0, secrets.token_hex, secrets.token_urlsafe)
        assert await gateway.keys.add(record)
        assert await gateway.keys.add(foreign_record)
        wrong = [plain[:-1] + ("A" if plain[-1] != "A" else "B"), plain + "x", plain.upper(), "日本", " ", foreign]
        texts = set()
        for key in wrong:
            with pytest.raises(KeyRefused) as refused:
                await authenticate(gateway, key)
            texts.add(str(refused.value))
        assert len(texts) == 1
        for key_missing in (None, ""):
            with pytest.raises(KeyMissing):
                await authenticate(gateway, key_missing)

    async def test_asks_for_nothing_when_it_is_off(self, gateway: GatewayBackend) -> None:
        """FLOW-266"""
        trouble = Trouble()
        open_to_all = with_trouble(
            replace(gateway, config=replace(gateway.config, http_auth_mode="none")), trouble, "keys"
        )
        for key in (None, "", "anything"):
            assert await authenticate(open_to_all, key) is NOBODY
        assert trouble.calls == []

    @pytest.mark.parametrize("fate", [BEFORE, AFTER])
    async def test_stays_closed_while_the_keys_cannot_be_looked_up(self, gateway: GatewayBackend, fate: str) -> None:
        plain, record = make_key("acme", "salt", 1.0, secrets.token_hex, secrets.token_urlsafe)
        assert await gateway.keys.add(record)
        with pytest.raises(Unavailable):
            await authenticate(with_trouble(gateway, Trouble({"keys.find": [fate]}), "keys"), plain)
