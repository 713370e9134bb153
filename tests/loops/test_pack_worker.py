"""The worker's lane of priced runs: whatever happens, a run ends once, and is paid for once."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.actions.priced.audit import audit
from pyoco_server.core.priced.message import encode
from pyoco_server.core.states.priced import Money, Stage, Status
from pyoco_server.executors.packs import host as host_module
from support.priced.pack_scenes import CREDIT, FOR_EVER, Scene, check_failed, check_refunded, is_gone, open_scene
from support.priced.stacks import an_ask, message_of
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("warm_hosts")

MARKER = "marker-7a1f"


class Counted:
    def __init__(self, real: Callable[[], None]) -> None:
        self._real, self.calls = real, 0

    def __call__(self) -> None:
        self.calls += 1
        self._real()


@pytest.fixture
async def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    async with open_scene(request, tmp_path, monkeypatch) as scene:
        yield scene


async def test_a_run_is_executed_stored_paid_for_and_acknowledged(scene: Scene) -> None:
    """PRICED-110, PRICED-111, PRICED-114 to PRICED-117, PRICED-130, PRICED-131, PRICED-134"""
    run = await scene.submit()
    seen: list[tuple[str, ...]] = []
    async with scene.worker() as worker:
        worker.when_changed = lambda: seen.append(worker.running)
        ended = await scene.ended(run)
        await scene.settled()
        await eventually(lambda: worker.last_status == "COMPLETED" and worker.running == ())
    assert seen[:2] == [(run.run_id,), ()]
    assert (ended.status, ended.money, ended.stage) == (Status.COMPLETED, Money.SETTLED, Stage.COMMITTED)
    assert ended.actual_cost_usd_micros == 50_000
    assert await scene.stack.balance() == CREDIT - 50_000
    assert ended.result is not None
    head = await scene.stack.priced.results.head(ended.result.key)
    assert head is not None
    assert (head.sha256, head.size_bytes) == (ended.result.sha256, ended.result.size_bytes)
    assert head.metadata["run_id"] == run.run_id
    envelope = await scene.envelope(run)
    assert envelope is not None
    assert envelope["status"] == "COMPLETED"
    assert envelope["cost"] == {"reserved_usd": "0.2500", "used_usd": "0.0500", "minimum_fee_usd": "0.0050"}
    assert set(envelope["data"]) == {"answer_text", "confidence"}
    assert [point for point in scene.stack.points.reached if not point.startswith("submit")] == [
        "worker.after_start",
        "worker.after_upload",
        "finalize.after_claim",
        "finalize.after_money",
        "finalize.after_commit",
        "worker.before_ack",
    ]


async def test_a_run_that_costs_more_than_is_reserved_costs_what_is_reserved(scene: Scene) -> None:
    """SAFE-2, PRICED-134: min(50_000, reserved), of a run that an older version accepted"""
    run = await scene.stack.stored_without_floor(an_ask(inputs={"question": "Shall we?"}, usd_micros=20_000))
    async with scene.worker():
        assert (await scene.ended(run)).actual_cost_usd_micros == 20_000
    envelope = await scene.envelope(run)
    assert envelope is not None
    assert envelope["cost"]["used_usd"] == "0.0200"


async def test_what_a_large_result_does_not_fit_in_is_stored_beside_it(scene: Scene) -> None:
    """PRICED-132"""
    run = await scene.submit("returns_9_mib")
    async with scene.worker():
        ended = await scene.ended(run)
    assert ended.result is not None
    assert [item["name"] for item in ended.result.artifacts] == ["b", "text.json"]
    for item in ended.result.artifacts:
        found = await scene.stack.priced.results.get(item["key"])
        assert found is not None
        assert len(found[0]) == item["bytes"]
    envelope = await scene.envelope(run)
    assert envelope is not None
    assert envelope["data"] == {"text": {"$artifact": "text.json"}, "short": 1}


class TestARunFails:
    @pytest.mark.parametrize(
        ("question", "detail"),
        [
            ("refuses", "PAGE_UNREADABLE: page 3 cannot be read"),
            ("refuses_oddly", f"PAGE_UNREADABLE: page \ufffd[2J 3{'x' * 272}"),
            ("raises", "the pack raised ValueError"),
            ("is_killed", "the pack's process ended by SIGKILL"),
            ("returns_64_mib", "the pack returned more than 32 MiB"),
        ],
    )
    async def test_when_its_pack_does(self, scene: Scene, question: str, detail: str) -> None:
        """PRICED-118, PRICED-133"""
        run, next_one = await scene.submit(question), await scene.submit()
        async with scene.worker():
            check_failed(await scene.ended(run), "PACK_FAILED", detail)
            assert (await scene.ended(next_one)).status is Status.COMPLETED
            await scene.settled()
        envelope = await scene.envelope(run)
        assert envelope is not None
        assert (envelope["status"], envelope["data"]) == ("FAILED", {})
        assert envelope["cost"]["used_usd"] == "0.0050"

    async def test_for_nothing_when_its_operator_is_at_fault(self, scene: Scene) -> None:
        """SAFE-3"""
        run = await scene.submit("lacks_a_model")
        async with scene.worker():
            check_refunded(await scene.ended(run), "MODEL_MISSING: the model is not there")
            await scene.settled()
        assert await scene.stack.balance() == CREDIT
        envelope = await scene.envelope(run)
        assert envelope is not None
        assert (envelope["status"], envelope["cost"]["used_usd"]) == ("FAILED", "0.0000")
        assert (await audit(scene.stack.priced)).differences == ()

    async def test_when_its_result_cannot_be_sealed(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """PRICED-132"""
        monkeypatch.setattr("pyoco_server.core.priced.envelope.ENVELOPE_MAX_BYTES", 100)
        run = await scene.submit()
        async with scene.worker():
            ended = await scene.ended(run)
        check_failed(ended, "PACK_FAILED", ended.error_detail)
        assert (ended.error_detail or "").startswith("the result cannot be stored: the envelope has")

    async def test_when_its_timebox_is_over(self, scene: Scene) -> None:
        """PRICED-118, PRICED-124"""
        run = await scene.submit("answers_late", timebox_sec=1)
        async with scene.worker():
            check_failed(await scene.ended(run), "TIMEBOX_EXCEEDED", "the pack took longer than 1 s")

    @pytest.mark.steady_time
    async def test_when_its_pack_does_not_mind_the_timebox(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """PRICED-124: the process has exited before the run has ended."""
        monkeypatch.setattr(host_module, "KILL_SECONDS", 0.3)
        seconds, begun = 1, scene.begun("begun")
        run = await scene.submit(f"ignores_cancel {begun}", timebox_sec=seconds)
        async with scene.worker():
            check_failed(await scene.ended(run), "TIMEBOX_EXCEEDED", f"the pack took longer than {seconds} s")
            assert begun.exists(), "its time was over before it had begun"
            assert is_gone(int(begun.read_text()))
            await scene.settled()

    async def test_when_its_result_cannot_be_stored(self, scene: Scene) -> None:
        """PRICED-115, SAFE-3: after three tries, and at no cost"""
        scene.results.down["put"] = FOR_EVER
        run = await scene.submit()
        async with scene.worker():
            check_refunded(await scene.ended(run), "the result could not be stored")
            await scene.settled()
        assert len(scene.results.asked("put")) == 3 + 1  # and one for the envelope of the failure
        assert await scene.envelope(run) is None

    async def test_when_other_bytes_lie_where_its_result_belongs(self, scene: Scene) -> None:
        run = await scene.submit()
        await scene.stack.upload(run, "other")
        async with scene.worker():
            check_failed(await scene.ended(run), "RESULT_STORE_FAILED", "other bytes lie where the result belongs")

    async def test_and_not_when_the_results_are_away_for_a_moment(self, scene: Scene) -> None:
        """PRICED-115"""
        scene.results.down["put"] = 2
        run = await scene.submit()
        async with scene.worker():
            assert (await scene.ended(run)).status is Status.COMPLETED


class TestAMessage:
    async def test_is_received_when_a_slot_is_free_and_not_before(self, scene: Scene) -> None:
        """PRICED-110"""
        first, second = await scene.submit(f"sleeps {scene.begun()}"), await scene.submit()
        async with scene.worker():
            await eventually(scene.begun().exists)
            assert len(scene.queue.asked("receive")) == 1
            assert (await scene.row(second)).status is Status.QUEUED
            assert {arguments[0] for arguments in scene.queue.asked("receive")} == {1}
        assert (await scene.row(first)).status is Status.PROCESSING

    @pytest.mark.steady_time
    async def test_that_comes_twice_is_skipped(self, scene: Scene) -> None:
        """PRICED-108, PRICED-112, PRICED-121: while the run is executed, and after it has ended."""
        acks, starts = len(scene.queue.asked("ack")), scene.stack.points.reached.count("worker.after_start")
        seconds = 2
        run = await scene.submit("sleeps", timebox_sec=seconds)
        copy = encode(message_of(run))
        async with scene.worker(2) as worker:
            await eventually(lambda: worker.running == (run.run_id,))
            await scene.stack.priced.queue.send(copy, f"a copy of {run.run_id}")
            await eventually(lambda: len(scene.queue.asked("ack")) == acks + 1)
            assert (await scene.row(run)).status is Status.PROCESSING
            check_failed(await scene.ended(run), "TIMEBOX_EXCEEDED", f"the pack took longer than {seconds} s")
            await scene.stack.priced.queue.send(copy, f"another copy of {run.run_id}")
            await eventually(lambda: len(scene.queue.asked("ack")) == acks + 3)
            await scene.settled()
        assert scene.stack.points.reached.count("worker.after_start") == starts + 1

    @pytest.mark.parametrize("body", [b"rubbish", b"{}", b"unknown run", b"other tenant"])
    async def test_that_nobody_can_act_on_is_a_dead_letter(self, scene: Scene, body: bytes) -> None:
        """PRICED-106"""
        run = await scene.submit("is never asked")
        (delivery,) = await scene.stack.deliveries()
        await scene.stack.priced.queue.ack(delivery)
        message = message_of(run)
        strange = {
            b"unknown run": replace(message, run_id=scene.priced.new_id()),
            b"other tenant": replace(message, tenant_id="bolt"),
        }
        scene.queue.is_hasty = True
        body = encode(strange[body]) if body in strange else body
        await scene.stack.priced.queue.send(body, "strange")

        async def is_letter() -> bool:
            return await scene.stack.priced.queue.depth() == (0, 1)

        async with scene.worker() as worker:
            doubts = Counted(worker._fitness.doubt)
            worker._fitness.doubt = doubts  # type: ignore[method-assign]
            await eventually(is_letter)
        assert doubts.calls == 0, "no store is to blame, and nobody's receive is to be cut short"
        assert [letter.body for letter in await scene.stack.priced.queue.dead_letters(9)] == [body]
        assert scene.queue.asked("ack") == []
        assert len(scene.queue.asked("nack")) == 3
        assert (await scene.row(run)).status is Status.QUEUED

    async def test_whose_start_is_not_answered_comes_again_later(self, scene: Scene) -> None:
        """PRICED-112"""
        run = await scene.submit()
        scene.ledger.down["transact"] = 1
        async with scene.worker():
            await eventually(lambda: len(scene.queue.asked("nack")) == 1)
        ((_, delay_seconds),) = scene.queue.asked("nack")
        assert delay_seconds == 30
        assert scene.queue.asked("ack") == []
        assert (await scene.row(run)).status is Status.QUEUED

    async def test_of_a_run_whose_end_is_unknown_is_not_acknowledged(self, scene: Scene) -> None:
        """PRICED-22, PRICED-120: reconcile completes what was decided."""

        async def ledger_goes() -> None:
            scene.ledger.down["*"] = FOR_EVER

        scene.stack.points.meanwhile["finalize.after_claim"] = ledger_goes
        run = await scene.submit()
        async with scene.worker() as worker:
            await eventually(lambda: "finalize.after_claim" in scene.stack.points.reached)
            await eventually(lambda: worker.running == ())
        assert scene.queue.asked("ack") == scene.queue.asked("nack") == []
        assert (await scene.row(run)).stage is Stage.CLAIMED
        scene.stack.skew.move(1000)
        await scene.stack.keep()
        ended = await scene.row(run)
        assert (ended.status, ended.actual_cost_usd_micros) == (Status.COMPLETED, 50_000)

    @pytest.mark.steady_time
    async def test_whose_ack_is_lost_is_skipped_when_it_comes_again(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-120"""
        async with open_scene(request, tmp_path, monkeypatch, 3, 1) as scene:
            scene.queue.down["ack"] = 1
            run = await scene.submit()
            async with scene.worker() as worker:
                await eventually(lambda: worker.last_status is not None)
                assert (await scene.row(run)).status is Status.COMPLETED
                await eventually(lambda: len(scene.queue.asked("ack")) == 2)
                await scene.settled()


class TestAPackThatIsNotServed:
    async def test_is_left_to_others_and_makes_no_dead_letters(self, scene: Scene) -> None:
        scene.queue.is_hasty = True
        run = await scene.submit()
        async with scene.worker(1, "tells"):
            await eventually(lambda: len(scene.queue.asked("send")) >= 3)
            assert (await scene.row(run)).status is Status.QUEUED
            async with scene.worker(1, "decision", "tells"):
                assert (await scene.ended(run)).status is Status.COMPLETED
            await scene.settled()
        assert {arguments[1] for arguments in scene.queue.asked("nack")} == {5}

    async def test_is_not_even_received_by_a_worker_that_serves_none(self, scene: Scene) -> None:
        async with scene.worker(1, "ocr") as worker:
            await worker.start()
            assert scene.queue.asked("receive") == []

    async def test_is_passed_on_no_more_once_the_run_has_ended(self, scene: Scene) -> None:
        scene.queue.is_hasty = True
        run = await scene.submit()
        scene.stack.skew.move(4000)
        await scene.stack.keep()
        assert (await scene.row(run)).reason_code == "RESERVATION_EXPIRED"
        async with scene.worker(1, "tells"):
            await scene.settled()
        assert scene.queue.asked("send") == []

    async def test_is_not_lost_when_it_cannot_be_passed_on(self, scene: Scene) -> None:
        scene.queue.is_hasty = True
        scene.queue.down["send"] = 1
        await scene.submit()
        async with scene.worker(1, "tells"):
            await eventually(lambda: len(scene.queue.asked("send")) >= 3)
        assert await scene.stack.priced.queue.depth() == (1, 0)


@pytest.mark.usefixtures("cold_hosts")  # what they print goes nowhere
async def test_nothing_that_was_sent_or_made_is_in_a_log_or_an_error(
    scene: Scene, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """PRICED-171"""
    caplog.set_level(logging.DEBUG)
    runs = []
    for word in ("raises", "refuses", "is_killed", "returns_64_mib", "tells", "decide"):
        ask = an_ask(inputs={"question": word, "context": MARKER, "mode": "full"})
        runs.append(await scene.stack.submitted(ask))
    scene.results.down["put"] = 1
    async with scene.worker(2):
        ended = [await scene.ended(run) for run in runs]
    assert {run.status for run in ended} == {Status.COMPLETED, Status.FAILED}
    for run in ended:
        assert MARKER not in repr(run)
    for record in caplog.records:
        assert MARKER not in repr(record.__dict__)
    assert MARKER not in "".join(capfd.readouterr())
    assert sum("pack executed" in record.getMessage() for record in caplog.records) == len(ended)
