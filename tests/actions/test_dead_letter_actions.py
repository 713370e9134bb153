"""Looking at dead letters, redriving and deleting them: whose they are, what cannot be done, and every crash point."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.dead_letters import a_letter
from pyoco_server.actions.count_dead_letters import count_dead_letters
from pyoco_server.actions.delete_dead_letter import delete_dead_letter
from pyoco_server.actions.delete_dead_letters import delete_dead_letters
from pyoco_server.actions.list_dead_letters import list_dead_letters
from pyoco_server.actions.redrive import redrive
from pyoco_server.actions.redrive_many import PROBLEMS_MAX, redrive_many
from pyoco_server.actions.rerun import RerunChange
from pyoco_server.actions.show_dead_letter import show_dead_letter
from pyoco_server.actions.submit_once import submit_once
from pyoco_server.actions.walk_dead_letters import Span, walk_dead_letters
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.dead_letter import dead_letter_of
from pyoco_server.core.flow_moves import claim
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.run import Caller
from pyoco_server.errors import DeadLetterNotFound, KeyReused, NotRepeatable, Refused, Unavailable
from pyoco_server.loops.dead_letter_feeder import DeadLetterFeeder
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.dead_letters.jetstream import JetStreamDeadLetters
from pyoco_server.ports.dead_letters.port import DeadLetterFilter, StoredDeadLetter
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring
from support.backends import ANNA, a_submission, jobs_left, messages_of
from support.burials import bury_letter, bury_letters, died, letter_ids_of, run_died
from support.faulty_ports import AFTER, BEFORE, UNHEARD, Trouble, with_trouble

NOBODY = Caller()
ACME, OTHER = Caller("acme", "key-1"), Caller("other", "key-2")
EVERYTHING = Span(1000)
YAML = "version: 1\ntasks:\n  a: {use: demo/a}\nflow:\n  defaults: {x: 1}\n  graph: a\n"


@pytest.fixture
async def backend(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[GatewayBackend]:
    async with wiring.open_gateway_backend(replace(config, data_dir=str(tmp_path))) as backend:
        assert isinstance(backend.dead_letters, JetStreamDeadLetters)
        backend.dead_letters._look_seconds = 0.1
        feeder = DeadLetterFeeder(backend.dead_letters, backend.dead_letter_index)
        await feeder.start()
        assert await feeder.caught_up(60)
        yield backend
        await feeder.stop()


async def reruns(link: Link, backend: GatewayBackend, run_id: str) -> set[str]:
    """The runs that repeat this one. Each has a job."""
    records = await messages_of(link, f"KV_{backend.config.runs_kv_bucket}")
    found = {each["body"]["run_id"] for each in records if each["body"] and each["body"].get("rerun_of") == run_id}
    assert found <= {each["body"]["run_id"] for each in await jobs_left(link, backend.config)}
    return found


class TestSeeing:
    async def test_a_letter_and_its_run(self, backend: GatewayBackend) -> None:
        letter_id, run = await died(backend, flow_name="f", params={"n": 1})
        view = await show_dead_letter(backend, NOBODY, str(letter_id))
        assert (view.found.dead_letter.run_id, view.run_status, view.redrivable) == (run.run_id, "FAILED", True)

    async def test_a_letter_whose_run_is_gone_or_never_was(self, backend: GatewayBackend) -> None:
        for letter in (a_letter(), a_letter(run_id=backend.new_id()), a_letter(run_id="no uuid")):
            view = await show_dead_letter(backend, NOBODY, str(await bury_letter(backend, letter)))
            assert (view.run_status, view.redrivable) == (None, False)

    async def test_a_letter_whose_run_has_not_ended(self, backend: GatewayBackend) -> None:
        accepted = await submit_once(backend, NOBODY, a_submission())
        letter = dead_letter_of(accepted.stored.run, DeadReason.TIMEOUT, 1.0)
        view = await show_dead_letter(backend, NOBODY, str(await bury_letter(backend, letter)))
        assert (view.run_status, view.redrivable) == ("PENDING", False)

    async def test_a_letter_whose_uploaded_flow_is_kept_or_gone(self, backend: GatewayBackend) -> None:
        letter_id, run = await died(backend, **uploaded(backend))
        assert (await show_dead_letter(backend, NOBODY, str(letter_id))).redrivable
        await backend.workflows.delete(run.workflow_yaml_sha256 or "")
        assert not (await show_dead_letter(backend, NOBODY, str(letter_id))).redrivable

    async def test_a_letter_whose_params_were_cut_away(self, backend: GatewayBackend) -> None:
        accepted = await submit_once(backend, NOBODY, a_submission())
        run = claim(accepted.stored.run, ANNA, "1", 2.0)
        cut = replace(run, params_truncated=True, status=(await run_died(backend)).status)
        await backend.runs.replace(cut, accepted.stored.revision)
        letter_id = await bury_letter(backend, dead_letter_of(cut, DeadReason.TIMEOUT, 1.0))
        assert not (await show_dead_letter(backend, NOBODY, str(letter_id))).redrivable
        with pytest.raises(NotRepeatable):
            await redrive(backend, NOBODY, str(letter_id))
        assert (await redrive(backend, NOBODY, str(letter_id), RerunChange(params={"n": 1}))).stored.run.params == {
            "n": 1
        }

    @pytest.mark.parametrize("letter_id", ["0", "99", "x", "", "-1", "01", "9" * 18, "9" * 30, "1 ", "١"])
    async def test_an_id_nobody_has(self, backend: GatewayBackend, letter_id: str) -> None:
        await bury_letter(backend, a_letter())
        for call in (show_dead_letter, redrive, delete_dead_letter):
            with pytest.raises(DeadLetterNotFound):
                await call(backend, NOBODY, letter_id)


def uploaded(backend: GatewayBackend) -> dict[str, Any]:
    file = backend.flow_files.read(YAML.encode())
    return {
        "params": file.defaults,
        "workflow_yaml": file.text,
        "workflow_yaml_sha256": file.sha256,
        "workflow_yaml_bytes": file.size,
    }


class TestTenants:
    async def test_each_sees_its_own_and_nobody_sees_what_is_nobodys(self, backend: GatewayBackend) -> None:
        """FLOW-273 to FLOW-275"""
        mine, _ = await died(backend, ACME)
        theirs, _ = await died(backend, OTHER)
        nobodys, _ = await died(backend, NOBODY)
        everything = {ACME: [mine], OTHER: [theirs], NOBODY: [nobodys, theirs, mine]}
        for caller, own in everything.items():
            page = await list_dead_letters(backend, caller, DeadLetterFilter(), 50)
            assert [item.letter_id for item in page.items] == own
            assert (await count_dead_letters(backend, caller)).total == len(own)
            assert sum(group.count for group in (await count_dead_letters(backend, caller)).groups) == len(own)
            for letter_id in {mine, theirs, nobodys} - set(own):
                for call in (show_dead_letter, redrive, delete_dead_letter):
                    with pytest.raises(DeadLetterNotFound):
                        await call(backend, caller, str(letter_id))
        assert (await redrive_many(backend, ACME, DeadLetterFilter(), EVERYTHING)).matched == 1
        assert (await delete_dead_letters(backend, OTHER, DeadLetterFilter(), EVERYTHING)).deleted == 1
        assert await letter_ids_of(backend) == [nobodys]

    async def test_a_filter_cannot_name_another_tenant(self, backend: GatewayBackend) -> None:
        await died(backend, OTHER)
        assert (await list_dead_letters(backend, ACME, DeadLetterFilter(tenant_id="other"), 50)).items == []
        assert (await delete_dead_letters(backend, ACME, DeadLetterFilter(tenant_id="other"), EVERYTHING)).matched == 0

    async def test_a_letter_that_names_another_tenants_run_does_not_run_it(
        self, link: Link, backend: GatewayBackend
    ) -> None:
        run = await run_died(backend, OTHER)
        letter_id = await bury_letter(backend, a_letter(run_id=run.run_id, tenant_id="acme"))
        assert (await show_dead_letter(backend, ACME, str(letter_id))).run_status is None
        with pytest.raises(NotRepeatable):
            await redrive(backend, ACME, str(letter_id))
        assert await reruns(link, backend, run.run_id) == set()


class TestRedriving:
    async def test_is_the_same_submission_as_a_new_run_and_the_letter_goes(
        self, link: Link, backend: GatewayBackend
    ) -> None:
        letter_id, old = await died(backend, ACME, flow_name="f", tag="gpu", tags=("x",), params={"n": [1]})
        run = (await redrive(backend, ACME, str(letter_id))).stored.run
        facts = (run.flow_name, run.tag, run.tags, run.params, run.rerun_of, run.tenant_id, run.status)
        assert facts == ("f", "gpu", ("x",), {"n": [1]}, old.run_id, "acme", "PENDING")
        assert await letter_ids_of(backend) == [], "gone from the next list at once"
        assert await backend.dead_letters.find(letter_id) is None
        found = await backend.runs.find(old.run_id)
        assert isinstance(found, Stored)
        assert found.run == old
        assert await reruns(link, backend, old.run_id) == {run.run_id}
        with pytest.raises(DeadLetterNotFound):
            await redrive(backend, ACME, str(letter_id))

    async def test_may_change_params_of_a_named_flow_and_not_of_an_uploaded_one(self, backend: GatewayBackend) -> None:
        named, _ = await died(backend, params={"a": 1, "b": 2})
        changed = await redrive(backend, NOBODY, str(named), RerunChange(params={"b": 3}))
        assert changed.stored.run.params == {"a": 1, "b": 3}
        by_file, _ = await died(backend, **uploaded(backend))
        with pytest.raises(Refused):
            await redrive(backend, NOBODY, str(by_file), RerunChange(params={"x": 2}))
        assert await letter_ids_of(backend) == [by_file]
        again = await redrive(backend, NOBODY, str(by_file))
        assert again.stored.run.params == {"x": 1}

    async def test_cannot_be_done_without_a_run_that_has_ended(self, link: Link, backend: GatewayBackend) -> None:
        accepted = await submit_once(backend, NOBODY, a_submission())
        broken = backend.new_id()
        await link.store(f"$KV.{backend.config.runs_kv_bucket}.{broken}", b"not a run")
        letters = [
            a_letter(),
            a_letter(run_id=backend.new_id()),
            a_letter(run_id=accepted.stored.run.run_id),
            a_letter(run_id=broken),
        ]
        for letter in letters:
            letter_id = await bury_letter(backend, letter)
            with pytest.raises(NotRepeatable) as raised:
                await redrive(backend, NOBODY, str(letter_id))
            assert raised.value.problems
            assert letter_id in await letter_ids_of(backend), "it stays, to be read and deleted"

    async def test_two_letters_of_one_run_lead_to_one_new_run(self, link: Link, backend: GatewayBackend) -> None:
        first, run = await died(backend)
        second = await bury_letter(backend, dead_letter_of(run, DeadReason.MAX_DELIVER, 1.0))
        one = await redrive(backend, NOBODY, str(first))
        with pytest.raises(KeyReused):
            await redrive(backend, NOBODY, str(second), RerunChange(params={"other": 1}))
        two = await redrive(backend, NOBODY, str(second))
        assert (two.stored.run.run_id, two.replayed) == (one.stored.run.run_id, True)
        assert await reruns(link, backend, run.run_id) == {one.stored.run.run_id}

    async def test_no_users_key_gets_in_its_way(self, backend: GatewayBackend) -> None:
        letter_id, run = await died(backend)
        for key in (f"redrive {run.run_id}".replace(" ", sep) for sep in ("", "-", "_", "%20", "+")):
            await submit_once(backend, NOBODY, a_submission(flow_name="else"), key)
        assert not (await redrive(backend, NOBODY, str(letter_id))).replayed

    async def test_many_at_once_lead_to_one_new_run(self, link: Link, backend: GatewayBackend, tmp_path: Path) -> None:
        """Double clicks, and another gateway"""
        letter_id, run = await died(backend)
        other = replace(backend.config, data_dir=str(tmp_path / "other"))
        async with wiring.open_gateway_backend(other) as elsewhere:
            await elsewhere.dead_letter_index.open()
            tries = [redrive(each, NOBODY, str(letter_id)) for each in (backend, elsewhere) * 10]
            answers = await asyncio.gather(*tries, return_exceptions=True)
            await elsewhere.dead_letter_index.close()
        redriven = {answer.stored.run.run_id for answer in answers if not isinstance(answer, BaseException)}
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        assert redriven == await reruns(link, backend, run.run_id)
        assert len(redriven) == 1
        assert all(isinstance(failure, DeadLetterNotFound) for failure in failures), failures


#: What a redrive asks of the ports, in order.
STEPS = [
    "dead_letters.find",
    "runs.find",
    "runs.find",
    "receipts.claim",
    "runs.create",
    "queue.put",
    "dead_letters.delete",
    "dead_letter_index.forget",
]
PORTS = ("dead_letters", "runs", "receipts", "queue", "dead_letter_index")


async def test_the_steps_of_a_redrive_are_these(backend: GatewayBackend) -> None:
    letter_id, _ = await died(backend)
    trouble = Trouble()
    await redrive(with_trouble(backend, trouble, *PORTS), NOBODY, str(letter_id))
    assert trouble.calls == STEPS


@pytest.mark.parametrize("fate", [BEFORE, AFTER, UNHEARD])
@pytest.mark.parametrize("step", range(len(STEPS)), ids=lambda step: f"{step}-{STEPS[step]}")
async def test_a_redrive_cut_off_anywhere_and_repeated_redrives_once(
    link: Link, backend: GatewayBackend, step: int, fate: str
) -> None:
    """DESIGN 6: every port call may fail, before or after it took effect"""
    letter_id, run = await died(backend, params={"n": 1})
    name = STEPS[step]
    earlier = STEPS[:step].count(name)
    troubled = with_trouble(backend, Trouble({name: [""] * earlier + [fate]}), *PORTS)
    try:
        first = await redrive(troubled, NOBODY, str(letter_id))
    except Unavailable:
        pass
    else:
        assert name in {"dead_letter_index.forget", "runs.create", "queue.put"}, name
        assert await reruns(link, backend, run.run_id) == {first.stored.run.run_id}
    try:
        again = await redrive(backend, NOBODY, str(letter_id))
    except DeadLetterNotFound:
        assert name in {"dead_letters.delete", "dead_letter_index.forget", "runs.create", "queue.put"}, (
            "it was done before"
        )
    else:
        assert {again.stored.run.run_id} == await reruns(link, backend, run.run_id)
    assert len(await reruns(link, backend, run.run_id)) == 1
    assert await backend.dead_letters.find(letter_id) is None


async def test_an_index_that_fails_does_not_spoil_a_redrive_that_was_done(
    backend: GatewayBackend, caplog: pytest.LogCaptureFixture
) -> None:
    letter_id, _ = await died(backend)
    broken = with_trouble(backend, Trouble({"dead_letter_index.forget": [BEFORE]}), "dead_letter_index")
    await redrive(broken, NOBODY, str(letter_id))
    assert "may stay listed for a moment" in caplog.text


class TestManyAtOnce:
    async def test_those_that_can_be_redriven_are_and_the_others_stay(
        self, link: Link, backend: GatewayBackend
    ) -> None:
        good = [await died(backend, flow_name="f") for _ in range(5)]
        bad = await bury_letters(backend, *[a_letter(flow_name="f", run_id=backend.new_id())] * 3)
        other, _ = await died(backend, flow_name="g")
        done = await redrive_many(backend, NOBODY, DeadLetterFilter(flow="f"), EVERYTHING)
        assert (done.matched, done.redriven, done.failed, done.next_before) == (8, 5, 3, None)
        assert sorted(letter_id for letter_id, _ in done.problems) == bad
        assert {type(error) for _, error in done.problems} == {NotRepeatable}
        assert await letter_ids_of(backend) == [other, *bad[::-1]]
        for _, run in good:
            assert len(await reruns(link, backend, run.run_id)) == 1
        assert done.revision > 0

    async def test_a_limit_is_kept_and_the_rest_is_found_from_there(self, backend: GatewayBackend) -> None:
        bad = await bury_letters(backend, *[a_letter()] * 3)
        good = [(await died(backend))[0] for _ in range(2)]
        worse = await bury_letters(backend, *[a_letter()] * 3)
        first = await redrive_many(backend, NOBODY, DeadLetterFilter(), Span(4))
        assert (first.matched, first.redriven, first.failed) == (4, 1, 3)
        assert first.next_before == good[1]
        second = await redrive_many(backend, NOBODY, DeadLetterFilter(), Span(4, first.next_before))
        assert (second.matched, second.redriven, second.failed, second.next_before) == (4, 1, 3, None)
        assert await letter_ids_of(backend) == [*worse[::-1], *bad[::-1]]

    async def test_problems_are_told_of_the_first_few_only(self, backend: GatewayBackend) -> None:
        await bury_letters(backend, *[a_letter()] * (PROBLEMS_MAX + 6))
        done = await redrive_many(backend, NOBODY, DeadLetterFilter(), EVERYTHING)
        assert (done.failed, len(done.problems)) == (PROBLEMS_MAX + 6, PROBLEMS_MAX)

    async def test_a_letter_that_fails_again_meanwhile_is_not_redriven_twice(
        self, link: Link, backend: GatewayBackend
    ) -> None:
        letter_id, run = await died(backend)
        trouble = Trouble()

        async def fails_again() -> None:
            await bury_letter(backend, dead_letter_of(await run_died(backend), DeadReason.TIMEOUT, time.time()))

        trouble.meanwhile["queue.put"] = fails_again
        done = await redrive_many(with_trouble(backend, trouble, "queue"), NOBODY, DeadLetterFilter(), EVERYTHING)
        assert (done.matched, done.redriven) == (1, 1)
        assert len(await reruns(link, backend, run.run_id)) == 1
        assert len(await letter_ids_of(backend)) == 1
        assert await letter_ids_of(backend) != [letter_id]

    async def test_one_that_somebody_else_took_is_no_failure(self, backend: GatewayBackend) -> None:
        taken, _ = await died(backend)
        await died(backend)
        assert isinstance(backend.dead_letters, JetStreamDeadLetters)
        backend.dead_letters._look_seconds = 60.0
        await backend.dead_letters.delete(taken)
        redriven = await redrive_many(backend, NOBODY, DeadLetterFilter(), EVERYTHING)
        assert (redriven.redriven, redriven.failed, redriven.problems) == (1, 0, [])

    @pytest.mark.parametrize("call", [redrive_many, delete_dead_letters])
    async def test_an_outage_stops_the_walk(self, backend: GatewayBackend, call: Any) -> None:
        newest = (await bury_letters(backend, *[a_letter()] * 41))[-1]
        nothing = with_trouble(backend, Trouble({"dead_letters.find": [BEFORE] * 100}), "dead_letters")
        with pytest.raises(Unavailable):
            await call(nothing, NOBODY, DeadLetterFilter(), EVERYTHING)
        trouble = Trouble({"dead_letters.find": [""] * 5 + [BEFORE] * 100})
        done = await call(with_trouble(backend, trouble, "dead_letters"), NOBODY, DeadLetterFilter(), EVERYTHING)
        assert done.matched == 5
        assert trouble.calls.count("dead_letters.find") < 41, "it did not try all of them"
        more = done.more if call is delete_dead_letters else done.next_before == newest + 1
        assert more

    @pytest.mark.virtual_time
    async def test_a_walk_ends_when_its_time_is_over(self, backend: GatewayBackend) -> None:
        newest = (await bury_letters(backend, *[a_letter()] * 5))[-1]
        seen: list[int] = []

        async def slow(item: StoredDeadLetter) -> None:
            seen.append(item.letter_id)
            await asyncio.sleep(0 if len(seen) == 1 else 600)

        began = time.monotonic()
        walked = await walk_dead_letters(backend, NOBODY, DeadLetterFilter(), Span(10, seconds=0.3), slow)
        assert time.monotonic() - began < 60
        assert (walked.matched, walked.next_before) == (1, newest + 1)

    async def test_a_walk_has_a_bounded_number_of_letters_in_hand(self, backend: GatewayBackend) -> None:
        await bury_letters(backend, *[a_letter()] * 250)
        now = most = 0
        seen: list[int] = []

        async def look(item: StoredDeadLetter) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            seen.append(item.letter_id)
            await asyncio.sleep(0.001)
            now -= 1

        walked = await walk_dead_letters(backend, NOBODY, DeadLetterFilter(), EVERYTHING, look)
        assert (walked.matched, walked.next_before) == (250, None)
        assert sorted(seen) == sorted(await letter_ids_of(backend))
        assert most == 32


class TestDeleting:
    async def test_takes_the_letter_and_leaves_the_run(self, backend: GatewayBackend) -> None:
        letter_id, run = await died(backend)
        assert await delete_dead_letter(backend, NOBODY, str(letter_id)) == letter_id
        assert await letter_ids_of(backend) == [], "gone from the next list at once"
        found = await backend.runs.find(run.run_id)
        assert isinstance(found, Stored)
        assert found.run == run
        with pytest.raises(DeadLetterNotFound):
            await delete_dead_letter(backend, NOBODY, str(letter_id))

    async def test_takes_what_fits_and_leaves_the_rest(self, backend: GatewayBackend) -> None:
        stays = await bury_letter(backend, a_letter(flow_name="g"))
        await bury_letters(backend, *[a_letter(flow_name="f")] * 6)
        done = await delete_dead_letters(backend, NOBODY, DeadLetterFilter(flow="f"), Span(4))
        assert (done.matched, done.deleted, done.more) == (4, 4, True)
        done = await delete_dead_letters(backend, NOBODY, DeadLetterFilter(flow="f"), Span(4))
        assert (done.matched, done.deleted, done.more) == (2, 2, False)
        assert await letter_ids_of(backend) == [stays]

    async def test_before_the_index_has_heard_of_it_keeps_it_out_of_lists(self, backend: GatewayBackend) -> None:
        """A list that was asked for after the answer never shows it"""
        for number in range(1, 20):
            await backend.queue.bury(a_letter(), backend.new_id())
            await delete_dead_letter(backend, NOBODY, str(number))
            assert number not in await letter_ids_of(backend)
        last = await bury_letter(backend, a_letter())
        assert await letter_ids_of(backend) == [last]
        assert (await count_dead_letters(backend, NOBODY)).total == 1

    @pytest.mark.parametrize("fate", [BEFORE, AFTER])
    @pytest.mark.parametrize("step", ["dead_letters.find", "dead_letters.delete", "dead_letter_index.forget"])
    async def test_cut_off_anywhere_may_be_repeated(self, backend: GatewayBackend, step: str, fate: str) -> None:
        letter_id = await bury_letter(backend, a_letter())
        troubled = with_trouble(backend, Trouble({step: [fate]}), "dead_letters", "dead_letter_index")
        if step == "dead_letter_index.forget":
            await delete_dead_letter(troubled, NOBODY, str(letter_id))
        else:
            with pytest.raises(Unavailable):
                await delete_dead_letter(troubled, NOBODY, str(letter_id))
            with pytest.raises(DeadLetterNotFound) if (step, fate) == ("dead_letters.delete", AFTER) else nullcontext():
                await delete_dead_letter(backend, NOBODY, str(letter_id))
        assert await backend.dead_letters.find(letter_id) is None
