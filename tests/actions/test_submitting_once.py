"""One key, one run: with every call failing before and after it took effect, and with others trying at once."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import FlowAttempt, Spent, claim_run
from pyoco_server.actions.rescue import rescue
from pyoco_server.actions.submit import Accepted
from pyoco_server.actions.submit_once import submit_once
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import Completed, DeadReason, Failed
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.errors import KeyReused, NotStored, Refused, Unavailable
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored, Withdrawn
from support.backends import ANNA, Clock, a_submission, jobs_left
from support.faulty_ports import AFTER, BEFORE, UNHEARD, Trouble, with_trouble
from support.gateway_backends import executed, opened_gateway_backend
from support.gateways import stock_of

PORTS = ("runs", "queue", "receipts")
ASK = a_submission(params={"n": 1})
NOBODY = Caller()
QUIET = 60.0


@pytest.fixture
def clock() -> Clock:
    """As the store's: a keeper compares the two."""
    return Clock(time.time())


@pytest.fixture
async def backend(config: NatsBackendConfig, clock: Clock, tmp_path: Path) -> AsyncIterator[GatewayBackend]:
    async with opened_gateway_backend(config, tmp_path) as backend:
        yield replace(backend, clock=clock)


async def send(backend: GatewayBackend, trouble: Trouble | None = None, key: str = "key") -> Accepted:
    return await submit_once(with_trouble(backend, trouble or Trouble(), *PORTS), NOBODY, ASK, key)


def run_id_of(accepted: Accepted) -> str:
    return accepted.stored.run.run_id


async def found(backend: GatewayBackend, run_id: str) -> Stored:
    stored = await backend.runs.find(run_id)
    assert isinstance(stored, Stored), stored
    return stored


class TestWithoutTrouble:
    async def test_without_a_key_there_is_no_receipt(self, backend: GatewayBackend, link: Link) -> None:
        """FLOW-78: the same payload twice makes two runs."""
        trouble = Trouble()
        one, two = [await submit_once(with_trouble(backend, trouble, *PORTS), NOBODY, ASK) for _ in range(2)]
        assert run_id_of(one) != run_id_of(two)
        assert not one.replayed
        assert trouble.calls == ["runs.create", "queue.put"] * 2
        assert (await stock_of(backend.config, link))[f"KV_{backend.config.receipts_kv_bucket}"] == 0

    async def test_the_receipt_comes_first_and_each_step_once(self, backend: GatewayBackend) -> None:
        trouble = Trouble()
        accepted = await send(backend, trouble)
        assert not accepted.replayed
        assert trouble.calls == ["receipts.claim", "runs.create", "queue.put"]

    async def test_a_repeat_gets_the_first_run(self, backend: GatewayBackend, link: Link) -> None:
        first = await send(backend)
        for _ in range(3):
            again = await send(backend)
            assert (run_id_of(again), again.replayed) == (run_id_of(first), True)
        assert await executed(backend, link) == [run_id_of(first)]

    async def test_another_submission_under_the_key_is_refused(self, backend: GatewayBackend, link: Link) -> None:
        """DESIGN 9.4"""
        await send(backend)
        before = await stock_of(backend.config, link)
        for other in (replace(ASK, params={"n": 2}), replace(ASK, tag="gpu"), replace(ASK, flow_name="other")):
            with pytest.raises(KeyReused):
                await submit_once(backend, NOBODY, other, "key")
        assert await stock_of(backend.config, link) == before

    async def test_a_tenants_keys_are_its_own(self, backend: GatewayBackend) -> None:
        accepted = [
            await submit_once(backend, caller, ask, "key")
            for caller, ask in (
                (Caller("acme", "k1"), ASK),
                (Caller("other", "k3"), replace(ASK, params={"n": 2})),
                (NOBODY, replace(ASK, params={"n": 3})),
                (Caller("acme", "k2"), ASK),  # another key to the door, the same tenant
            )
        ]
        assert [each.replayed for each in accepted] == [False, False, False, True]
        assert len({run_id_of(each) for each in accepted[:3]}) == 3
        assert run_id_of(accepted[3]) == run_id_of(accepted[0])
        assert accepted[3].stored.run.api_key_id == "k1"

    async def test_what_is_refused_uses_no_key_up(self, backend: GatewayBackend, link: Link) -> None:
        """FLOW-70, FLOW-71"""
        before = await stock_of(backend.config, link)
        large = replace(ASK, params={"big": "x" * backend.config.max_run_snapshot_bytes})
        with pytest.raises(Refused) as refused:
            await submit_once(backend, NOBODY, large, "key")
        assert refused.value.problems[0].loc == ("body", "params")
        assert await stock_of(backend.config, link) == before
        assert not (await send(backend)).replayed

    async def test_of_many_at_once_on_two_gateways_one_makes_the_run(
        self, backend: GatewayBackend, link: Link, tmp_path: Path
    ) -> None:
        async with opened_gateway_backend(backend.config, tmp_path / "other") as other:
            accepted = await asyncio.gather(*(send(gateway) for gateway in [backend, other] * 10))
        assert len({run_id_of(each) for each in accepted}) == 1
        assert await executed(backend, link) == [run_id_of(accepted[0])]

    @pytest.mark.parametrize("end", ["running", "completed", "failed", "cancelling", "cancelled"])
    async def test_a_run_that_has_moved_on_is_left_alone(self, backend: GatewayBackend, link: Link, end: str) -> None:
        run_id = run_id_of(await send(backend))
        stored = await found(backend, run_id)
        if end.startswith("cancel"):
            await cancel(backend, NOBODY, run_id, None)
        else:
            await backend.runs.replace(claim(stored.run, ANNA, "a", 1.0), stored.revision)
        if end not in {"running", "cancelling"}:
            stored = await found(backend, run_id)
            outcome = Failed(message="x") if end == "failed" else Completed()
            await backend.runs.replace(conclude(stored.run, outcome, 2.0), stored.revision)
        before = await stock_of(backend.config, link)
        again = await send(backend)
        assert (run_id_of(again), again.replayed) == (run_id, True)
        assert again.stored.run.status.value == end.upper()
        assert await stock_of(backend.config, link) == before


#: What a first try can leave behind. None of these reports success.
FIRST_TRIES: list[dict[str, list[str]]] = [
    *({"receipts.claim": [fate]} for fate in (BEFORE, AFTER, UNHEARD)),
    *({"runs.create": [fate]} for fate in (BEFORE, AFTER, UNHEARD)),
    *({"queue.put": [fate]} for fate in (BEFORE, AFTER, UNHEARD)),
    *(
        {"queue.put": [put], "runs.withdraw": [withdraw]}
        for put, withdraw in itertools.product((BEFORE, AFTER, UNHEARD), (BEFORE, AFTER, UNHEARD))
    ),
]
#: What can go wrong when it is tried again. Where such a call is not made, nothing goes wrong.
SECOND_TRIES: list[dict[str, list[str]]] = [
    {},
    *(
        {call: [fate]}
        for call in ("receipts.claim", "receipts.replace", "runs.find", "runs.create", "runs.replace", "queue.put")
        for fate in (BEFORE, AFTER, UNHEARD)
    ),
    {"queue.put": [BEFORE], "runs.withdraw": [BEFORE]},
    {"queue.put": [AFTER], "runs.withdraw": [AFTER]},
]


def planned(plan: dict[str, list[str]]) -> Trouble:
    return Trouble({name: list(fates) for name, fates in plan.items()})


class TestEveryCrash:
    @pytest.mark.parametrize("first", FIRST_TRIES, ids=str)
    async def test_a_repeat_brings_it_to_one_run(
        self, backend: GatewayBackend, link: Link, first: dict[str, list[str]]
    ) -> None:
        """FLOW-73 to FLOW-77, DESIGN 9.4. The second try may fail as well; the third is left in peace."""
        answered = {}
        for n, second in enumerate(SECOND_TRIES):
            key = f"key-{n}"
            with pytest.raises(Unavailable):
                await send(backend, planned(first), key)
            try:
                told = run_id_of(await send(backend, planned(second), key))
            except Unavailable:
                told = None
            run_id = run_id_of(await send(backend, key=key))
            assert told in (None, run_id)
            again = await send(backend, key=key)
            assert (run_id_of(again), again.replayed) == (run_id, True)
            answered[key] = run_id
        # Of all jobs in the queue, exactly the promised runs are executed, each of them once.
        assert sorted(await executed(backend, link)) == sorted(answered.values())

    @pytest.mark.parametrize("call", ["receipts.claim", "runs.create", "queue.put"])
    async def test_a_process_that_dies_after_any_step_leaves_one_run_to_whoever_repeats(
        self, backend: GatewayBackend, link: Link, call: str
    ) -> None:
        class DiedError(Exception):
            pass

        async def die() -> None:
            raise DiedError

        with pytest.raises(DiedError):
            await send(backend, Trouble(meanwhile={call: die}))
        run_id = run_id_of(await send(backend))
        assert await executed(backend, link) == [run_id]

    @pytest.mark.parametrize("first", FIRST_TRIES, ids=str)
    async def test_it_makes_no_difference_when_a_worker_is_faster(
        self, backend: GatewayBackend, link: Link, first: dict[str, list[str]]
    ) -> None:
        """The job of the first try, if there is one, is delivered before the repeat comes."""
        with pytest.raises(Unavailable):
            await send(backend, planned(first))
        begun = await drained(backend, link)
        run_id = run_id_of(await send(backend))
        begun += await drained(backend, link)
        assert begun == [run_id]


async def drained(backend: GatewayBackend, link: Link) -> list[str]:
    """As `executed`; what workers are done with leaves the queue."""
    intake = await backend.queue.open_intake(["default"], lambda _: None)
    begun = []
    for _ in range(len(await jobs_left(link, backend.config))):
        delivery = await intake.take(60)
        assert delivery is not None
        taken = await claim_run(backend, decode_job(delivery.data), ANNA, first_delivery=True)
        begun += [decode_job(delivery.data).run_id] if isinstance(taken, FlowAttempt) else []
        assert isinstance(taken, FlowAttempt | Spent)
        await link.ask(delivery._message.reply, b"+ACK")  # type: ignore[attr-defined]  # waits until it has left
    await intake.close()
    return begun


class TestTwoAtOnce:
    @pytest.mark.parametrize("fate", [UNHEARD, BEFORE])
    async def test_who_failed_cannot_take_back_what_another_has_answered_for(
        self, backend: GatewayBackend, link: Link, fate: str
    ) -> None:
        """FLOW-75: the first one's put fails, and it withdraws. In between the second one has found the record and put
        the job, and its caller was told of success."""
        await self._race(backend, link, Trouble({"queue.put": [fate]}), "runs.create")

    async def test_the_same_while_only_the_answer_to_its_put_gets_lost(
        self, backend: GatewayBackend, link: Link
    ) -> None:
        await self._race(backend, link, Trouble({"queue.put": [AFTER]}), "queue.put")

    async def _race(self, backend: GatewayBackend, link: Link, trouble: Trouble, after: str) -> None:
        told: list[Accepted] = []

        async def another_try() -> None:
            told.append(await send(backend))

        trouble.meanwhile[after] = another_try
        with pytest.raises(Unavailable):
            await send(backend, trouble)
        assert "runs.withdraw" in trouble.calls
        assert await executed(backend, link) == [run_id_of(told[0])]

    async def test_a_repeat_never_takes_back_what_it_did_not_make(self, backend: GatewayBackend, link: Link) -> None:
        """The first one was told of success."""
        first = await send(backend)
        for fate in (UNHEARD, BEFORE, AFTER):
            trouble = Trouble({"queue.put": [fate]})
            with pytest.raises(Unavailable):
                await send(backend, trouble)
            assert "runs.withdraw" not in trouble.calls
        assert await executed(backend, link) == [run_id_of(first)]

    @pytest.mark.parametrize("after", ["receipts.claim", "runs.find", "runs.create", "runs.replace", "queue.put"])
    @pytest.mark.parametrize("first", [{"runs.create": [BEFORE]}, {"runs.create": [AFTER]}, {"queue.put": [UNHEARD]}])
    async def test_a_repeat_between_any_two_steps_of_a_repeat_comes_to_the_same_run(
        self, backend: GatewayBackend, link: Link, first: dict[str, list[str]], after: str
    ) -> None:
        with pytest.raises(Unavailable):
            await send(backend, planned(first))
        told: list[Accepted] = []

        async def another_try() -> None:
            told.append(await send(backend))

        trouble = Trouble(meanwhile={after: another_try})
        told.append(await send(backend, trouble))
        assert len(told) == (2 if after in trouble.calls else 1)
        assert {run_id_of(each) for each in told} == set(await executed(backend, link))

    async def test_a_run_that_is_claimed_meanwhile_is_answered_for(self, backend: GatewayBackend, link: Link) -> None:
        first = await send(backend)

        async def a_worker() -> None:
            assert await executed(backend, link) == [run_id_of(first)]

        again = await send(backend, Trouble(meanwhile={"runs.find": a_worker}))
        assert (run_id_of(again), again.stored.run.status) == (run_id_of(first), RunState.RUNNING)


class TestWithdrawnAndAbandoned:
    async def test_a_withdrawn_run_is_not_brought_back(self, backend: GatewayBackend, link: Link) -> None:
        """Its job may be dropped at any moment, and for two minutes the queue would drop every other of that id."""
        old = backend.new_id()
        with pytest.raises(Unavailable):
            await send(replace(backend, new_id=lambda: old), Trouble({"queue.put": [AFTER]}))
        assert isinstance(await backend.runs.find(old), Withdrawn)
        assert await drained(backend, link) == []
        run_id = run_id_of(await send(backend))
        assert run_id != old
        assert await drained(backend, link) == [run_id]
        assert isinstance(await backend.runs.find(old), Withdrawn)

    async def test_a_run_that_was_abandoned_before_anyone_began_it_is_promised_anew(
        self, backend: GatewayBackend, link: Link, clock: Clock
    ) -> None:
        with pytest.raises(Unavailable):
            await send(backend, Trouble({"runs.create": [AFTER]}))
        [old] = await self._abandoned(backend, clock)
        first = await send(backend)
        assert (run_id_of(first) != old, first.replayed) == (True, False)
        assert run_id_of(await send(backend)) == run_id_of(first)
        assert await executed(backend, link) == [run_id_of(first)]

    @staticmethod
    async def _abandoned(backend: GatewayBackend, clock: Clock) -> list[str]:
        """The keeper comes by, and ends what has no job."""
        clock.now += QUIET + 1
        ended = []
        async for change in backend.runs.changes():
            for item in change.items:
                assert isinstance(item, Stored)
                run = await rescue(backend, item.run.run_id, QUIET)
                ended += [run.run_id] if run is not None else []
            if change.caught_up:
                break
        return ended

    async def test_an_abandoned_run_that_had_been_begun_stays_the_answer(
        self, backend: GatewayBackend, clock: Clock
    ) -> None:
        """Something of it happened: a second one under the same key would be one too many."""
        run_id = run_id_of(await send(backend))
        stored = await found(backend, run_id)
        taken = await backend.runs.replace(claim(stored.run, ANNA, "a", clock.now), stored.revision)
        assert isinstance(taken, Stored)
        lost = conclude(taken.run, Failed(message="x", why=DeadReason.ABANDONED), clock.now)
        await backend.runs.replace(lost, taken.revision)
        again = await send(backend)
        assert (run_id_of(again), again.replayed) == (run_id, True)

    async def test_the_keeper_does_not_end_what_is_being_queued_again(
        self, backend: GatewayBackend, link: Link, clock: Clock
    ) -> None:
        """The record has been quiet for long, and has no job yet: that is what the keeper looks for."""
        with pytest.raises(Unavailable):
            await send(backend, Trouble({"runs.create": [AFTER]}))
        clock.now += QUIET + 1
        looks: list[object] = []

        async def the_keeper() -> None:
            async for change in backend.runs.changes():
                for item in change.items:
                    assert isinstance(item, Stored)
                    looks.append(await rescue(backend, item.run.run_id, QUIET))
                if change.caught_up:
                    break

        accepted = await send(backend, Trouble(meanwhile={"runs.replace": the_keeper}))
        assert looks == [None]
        assert await executed(backend, link) == [run_id_of(accepted)]

    async def test_the_keeper_that_was_faster_is_seen(self, backend: GatewayBackend, link: Link, clock: Clock) -> None:
        with pytest.raises(Unavailable):
            await send(backend, Trouble({"runs.create": [AFTER]}))
        ended: list[str] = []

        async def the_keeper() -> None:
            ended.extend(await self._abandoned(backend, clock))

        accepted = await send(backend, Trouble(meanwhile={"runs.find": the_keeper}))
        assert len(ended) == 1
        assert run_id_of(accepted) not in ended
        assert await executed(backend, link) == [run_id_of(accepted)]


async def test_a_key_whose_run_never_stands_still_is_given_up(backend: GatewayBackend) -> None:
    """Everything is bounded: this is reported as an outage, and may be retried."""
    first = await send(backend)

    async def touch() -> None:
        stored = await found(backend, run_id_of(first))
        await backend.runs.replace(stored.run, stored.revision)

    class Restless(Trouble):
        async def go(self, name: str, call: Callable[[], Awaitable[object]]) -> object:
            answer = await super().go(name, call)
            if name == "runs.find":
                await touch()
            return answer

    with pytest.raises(Unavailable, match="too fast"):
        await send(backend, Restless())


async def test_what_is_certain_stays_certain_on_the_way_to_the_caller(backend: GatewayBackend) -> None:
    with pytest.raises(NotStored):
        await send(backend, Trouble({"receipts.claim": [UNHEARD]}))
