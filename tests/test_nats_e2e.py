"""The library's worker: every way a job can end, seen in the record, the dead letters and the queue."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server import PyocoNatsWorker
from pyoco_server.actions import claim as claim_module
from pyoco_server.actions import finish as finish_module
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.actions.submit import submit
from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.errors import Unavailable
from pyoco_server.loops import delivery_processor as crew_module
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from support import naughty
from support.backends import (
    ANNA,
    a_submission,
    jobs_left,
    logged,
    run_now,
    submitted,
)
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble
from support.library_worker import Scene, backend, letter_of, put_raw, scene
from support.memory_nats import nats_url, real_nats
from support.nats_clients import network_client
from support.waiting import eventually

__all__ = ["backend", "nats_url", "real_nats", "scene"]


class TestRunOnce:
    async def test_runs_one_job_and_returns_its_run_id(self, scene: Scene) -> None:
        """FLOW-364 to FLOW-372, FLOW-397, FLOW-555"""
        first, second = await submitted(scene.backend, "fine", n=1), await submitted(scene.backend, "fine", n=2)
        assert await scene.run_id_after() == first
        run = await scene.run(first)
        assert (run.status, run.worker_id, run.error) == (RunState.COMPLETED, "worker", None)
        assert (dict(run.tasks), run.task_records["fine"]["output"]) == ({"fine": "SUCCEEDED"}, 2)
        assert run.start_time is not None
        assert run.end_time is not None
        assert (await scene.run(second)).status is RunState.PENDING
        assert await scene.run_id_after() == second
        await eventually(scene.has_gone)
        assert await scene.letters() == []

    async def test_returns_none_in_time_when_there_is_nothing(self, scene: Scene) -> None:
        """FLOW-365, FLOW-397"""
        for timeout in (0, 0.0, 0.4):
            began = time.monotonic()
            assert await scene.worker.run_once(timeout) is None
            assert timeout <= time.monotonic() - began < timeout + 60

    async def test_finds_a_waiting_job_without_waiting(self, scene: Scene) -> None:
        """FLOW-397: a timeout of 0 polls once."""
        run_id = await submitted(scene.backend, "fine")
        assert await scene.run_id_of_polls(0) == run_id

    async def test_bounds_the_polling_and_not_the_execution(self, scene: Scene) -> None:
        """FLOW-397"""
        run_id = await submitted(scene.backend, "sleeps", seconds=0.6)
        assert await scene.run_id_of_polls(0.1) == run_id
        assert (await scene.run(run_id)).status is RunState.COMPLETED

    async def test_refuses_a_negative_timeout_and_a_closed_worker(self, scene: Scene) -> None:
        with pytest.raises(ValueError, match="timeout"):
            await scene.worker.run_once(-1)
        await scene.worker.close()
        with pytest.raises(RuntimeError, match="closed"):
            await scene.worker.run_once()

    async def test_tells_the_registry(self, scene: Scene, tmp_path: Path) -> None:
        """FLOW-195, FLOW-197, FLOW-372"""
        idle = await scene.registered()
        assert (idle.state, idle.tags, idle.slots) == (WorkerState.IDLE, ("default",), 1)
        run_id = await submitted(scene.backend, "waits_for", path=str(tmp_path / "gate"))
        working = asyncio.create_task(scene.worker.run_once(60))

        async def says_so() -> bool:
            record = await scene.registered()
            return (record.state, record.current_run_id) == (WorkerState.RUNNING, run_id)

        await eventually(says_so)
        (tmp_path / "gate").touch()
        await working
        after = await scene.registered()
        assert (after.state, after.current_run_id, after.last_run_status) == (WorkerState.IDLE, None, "COMPLETED")

    async def test_serves_two_tags_and_no_third(self, backend: Backend) -> None:
        """FLOW-293, FLOW-294, FLOW-395"""
        worker = await PyocoNatsWorker.connect(backend.config, naughty.resolve, tags=["a", "b", "a"])
        try:
            wanted = {await submitted(backend, "fine", tag) for tag in ("a", "a", "a", "b")}
            await submitted(backend, "fine", "c")
            order = [await worker.run_once(60) for _ in range(4)]
            assert set(order) == wanted
            assert await worker.run_once(0.2) is None
            record = await backend.registry.find("worker")
            assert record is not None
            assert record.tags == ("a", "b")
        finally:
            await worker.close()

    async def test_hears_a_cancel(self, scene: Scene) -> None:
        """FLOW-179, FLOW-182"""
        run_id = await submitted(scene.backend, "watches_for_a_cancel", seconds=200)
        working = asyncio.create_task(scene.worker.run_once(60))
        await eventually(lambda: _is_running(scene, run_id))
        await cancel(scene.backend, Caller(), run_id, None)
        assert await working == run_id
        assert (await scene.run(run_id)).status is RunState.CANCELLED
        await eventually(scene.has_gone)
        assert await scene.letters() == []

    async def test_waits_on_for_a_cancelled_task_that_does_not_stop(
        self, backend: Backend, link: Link, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        """FLOW-185, FLOW-186, FLOW-187: threads cannot be killed."""
        config = replace(backend.config, cancel_grace_period_sec=0.2)
        worker = await PyocoNatsWorker.connect(config, naughty.resolve)
        scene = Scene(worker, backend, link)
        run_id = await submitted(backend, "waits_for", path=str(tmp_path / "gate"))
        with caplog.at_level(logging.WARNING):
            working = asyncio.create_task(worker.run_once(60))
            await eventually(lambda: _is_running(scene, run_id))
            await cancel(replace(backend, config=config), Caller(), run_id, None)

            async def says_so() -> bool:
                run = await run_now(backend, run_id)
                return run.status is RunState.CANCELLING and (run.error or "").startswith("ERR-PYOCO-0021")

            await eventually(says_so)
            beat = (await run_now(backend, run_id)).heartbeat_at

            async def beats() -> bool:
                return (await run_now(backend, run_id)).heartbeat_at > beat

            await eventually(beats)
            (tmp_path / "gate").touch()
            assert await working == run_id
        run = await run_now(backend, run_id)
        assert run.status is RunState.CANCELLED
        assert len(logged(caplog.records, 21)) == 1
        await worker.close()


async def _is_running(scene: Scene, run_id: str) -> bool:
    run = await scene.run(run_id)
    return run.status is RunState.RUNNING and "RUNNING" in run.tasks.values()


class TestDispositions:
    """Section 15.5, row by row."""

    @pytest.mark.parametrize(
        "body",
        [b"", b"not JSON", b"[]", b"null", b"\xff\xfe", b"{}", b'{"run_id": "x"}', b'{"flow_name": 3}', b"[" * 100_000],
        ids=range(9),
    )
    async def test_a_message_that_is_no_job_is_removed_with_a_letter(
        self, scene: Scene, caplog: pytest.LogCaptureFixture, body: bytes
    ) -> None:
        """FLOW-316, FLOW-329, FLOW-397: its id could not be read."""
        await put_raw(scene, body)
        with caplog.at_level(logging.ERROR):
            assert await scene.run_id_after() is None
        await eventually(scene.has_gone)
        [letter] = await scene.letters()
        letter_of(letter, "invalid_job", None)
        assert logged(caplog.records, 12)

    async def test_an_invalid_job_of_a_known_run_fails_it(self, scene: Scene) -> None:
        """FLOW-15, FLOW-316"""
        run_id = await submitted(scene.backend, "fine", "elsewhere", secret="s3cret")
        await put_raw(scene, json.dumps({"run_id": run_id, "flow_name": "", "params": {"p": "s3cret"}}).encode())
        assert await scene.run_id_after() == run_id
        run = await scene.run(run_id)
        assert (run.status, run.reason) == (RunState.FAILED, "invalid_job")
        assert run.end_time is not None
        [letter] = await scene.letters()
        letter_of(letter, "invalid_job", run_id)
        assert "s3cret" not in json.dumps(letter)

    async def test_a_flow_this_worker_does_not_have(self, scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
        """FLOW-317, FLOW-323"""
        run_id = await submitted(scene.backend, "no such flow", word="s3cret")
        with caplog.at_level(logging.ERROR):
            assert await scene.run_id_after() == run_id
        run = await scene.run(run_id)
        assert (run.status, run.reason) == (RunState.FAILED, "flow_not_found")
        await eventually(scene.has_gone)
        [letter] = await scene.letters()
        letter_of(letter, "flow_not_found", run_id)
        assert (letter["flow_name"], letter["tags"]) == ("no such flow", ["default"])
        assert "s3cret" not in json.dumps(letter)  # FLOW-337
        [told] = logged(caplog.records, 6)
        assert (told["run_id"], told["msg_id"]) == (run_id, "MSG-PYOCO-0006")

    @pytest.mark.parametrize("flow", ["fails", "exits", "resolver fails", "raises_the_unprintable"])
    async def test_a_flow_that_raises(self, scene: Scene, caplog: pytest.LogCaptureFixture, flow: str) -> None:
        """FLOW-318, FLOW-323, FLOW-327"""
        run_id = await submitted(scene.backend, flow)
        with caplog.at_level(logging.ERROR):
            assert await scene.run_id_after() == run_id
        run = await scene.run(run_id)
        assert (run.status, run.reason) == (RunState.FAILED, "execution_error")
        assert run.error
        assert "RUNNING" not in run.tasks.values()  # FLOW-23
        await eventually(scene.has_gone)
        letter_of((await scene.letters())[0], "execution_error", run_id)
        assert [each["run_id"] for each in logged(caplog.records, 7)] == [run_id]
        # And the worker works on.
        assert await submitted(scene.backend, "fine") == await scene.run_id_after()

    async def test_a_flow_that_raises_without_letters_when_they_are_switched_off(
        self, backend: Backend, link: Link
    ) -> None:
        """FLOW-335"""
        config = replace(backend.config, dlq_publish_execution_error=False)
        worker = await PyocoNatsWorker.connect(config, naughty.resolve)
        scene = Scene(worker, backend, link)
        for flow in ("fails", "unknown"):
            await submitted(backend, flow)
            await worker.run_once(60)
        assert [letter["reason"] for letter in await scene.letters()] == ["flow_not_found"]
        await worker.close()

    async def test_no_flow_by_name_without_a_resolver(self, backend: Backend, link: Link) -> None:
        """FLOW-324, FLOW-393"""
        worker = await PyocoNatsWorker.connect(backend.config)
        run_id = await submitted(backend, "fine")
        assert await worker.run_once(60) == run_id
        assert (await run_now(backend, run_id)).reason == "flow_not_found"
        await worker.close()

    @pytest.mark.parametrize("call", ["runs.replace", "runs.find"])
    @pytest.mark.parametrize("fate", [BEFORE, AFTER])
    async def test_nats_trouble_at_the_start_puts_the_job_off(
        self,
        scene: Scene,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
        fate: str,
    ) -> None:
        """FLOW-319, FLOW-321, FLOW-398"""
        monkeypatch.setattr(claim_module, "_SKEW_SECONDS", 200.0)  # also on a busy machine a heartbeat is fresh
        monkeypatch.setattr(crew_module, "LATER_SECONDS", 0.5)
        run_id = await submitted(scene.backend, "fine")
        if call == "runs.find":  # read only when the record has moved on
            await cancel(scene.backend, Caller(), run_id, None)
        scene.troubled(Trouble({call: [fate]}))
        began = time.monotonic()
        with caplog.at_level(logging.ERROR):
            assert await scene.run_id_after() == run_id
        assert await scene.comes_again()
        assert await scene.letters() == []
        assert logged(caplog.records, 3)
        if fate == AFTER and call == "runs.replace":
            # The claim had worked. While its heartbeat is fresh the run is left alone.
            assert await scene.run_id_after() == run_id
            assert (await scene.run(run_id)).status is RunState.RUNNING
        else:
            assert await scene.run_id_after() == run_id
            assert (await scene.run(run_id)).is_terminal
        assert time.monotonic() - began >= 0.5

    async def test_an_end_that_cannot_be_written_puts_the_job_off(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-320, FLOW-322"""
        monkeypatch.setattr(finish_module, "_PAUSE_SECONDS", 0.01)
        run_id = await submitted(scene.backend, "fine")
        scene.troubled(Trouble({"runs.replace": ["", BEFORE, BEFORE, BEFORE]}))
        with caplog.at_level(logging.ERROR):
            assert await scene.run_id_after() == run_id
        assert len(logged(caplog.records, 8)) == 3
        assert (await scene.run(run_id)).status is RunState.RUNNING
        assert await scene.comes_again()
        assert await scene.letters() == []

    async def test_an_end_whose_answer_was_lost_is_an_end(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """FLOW-307, FLOW-322"""
        monkeypatch.setattr(finish_module, "_PAUSE_SECONDS", 0.01)
        run_id = await submitted(scene.backend, "fails")
        scene.troubled(Trouble({"runs.replace": ["", AFTER]}))
        assert await scene.run_id_after() == run_id
        assert (await scene.run(run_id)).status is RunState.FAILED
        await eventually(scene.has_gone)
        assert len(await scene.letters()) == 1

    @pytest.mark.parametrize("fate", [BEFORE, AFTER])
    async def test_a_letter_that_cannot_be_written_changes_nothing(
        self, scene: Scene, caplog: pytest.LogCaptureFixture, fate: str
    ) -> None:
        """FLOW-336"""
        run_id = await submitted(scene.backend, "fails")
        scene.troubled(Trouble({"queue.bury": [fate]}))
        with caplog.at_level(logging.ERROR):
            assert await scene.run_id_after() == run_id
        assert logged(caplog.records, 11)
        assert (await scene.run(run_id)).status is RunState.FAILED
        await eventually(scene.has_gone)

    async def test_the_record_comes_first_then_the_letter_then_the_answer(self, scene: Scene) -> None:
        """FLOW-307, FLOW-329"""
        trouble = Trouble()
        scene.troubled(trouble)
        run_id = await submitted(scene.backend, "fails")

        async def still_there() -> None:
            assert (await scene.run(run_id)).status is RunState.FAILED
            assert len(await jobs_left(scene.link, scene.backend.config)) == 1

        trouble.meanwhile["queue.bury"] = still_there
        await scene.run_id_after()
        writes = [call for call in trouble.calls if call in {"runs.replace", "queue.bury"}]
        assert writes[0] == "runs.replace"
        assert writes[-2:] == ["runs.replace", "queue.bury"]


@pytest.mark.usefixtures("real_nats")  # listens to the advisories of the server
@pytest.mark.parametrize(
    ("flow", "plan", "answers"),
    [
        ("fine", {}, []),
        ("fails", {}, []),  # FLOW-318
        ("unknown", {}, []),  # FLOW-317
        (None, {}, ["MSG_TERMINATED"]),  # FLOW-316
        ("fine", {"runs.replace": [BEFORE]}, ["MSG_NAKED"]),  # FLOW-319
        ("fine", {"runs.replace": ["", BEFORE, BEFORE, BEFORE]}, ["MSG_NAKED"]),  # FLOW-320
    ],
    ids=["completed", "failed", "not found", "invalid", "unavailable", "unwritten"],
)
async def test_the_queue_hears_the_word_that_the_table_says(
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    flow: str | None,
    plan: dict[str, list[str]],
    answers: list[str],
) -> None:
    """Section 15.5: an ACK makes no advisory; a NAK and a TERM do."""
    monkeypatch.setattr(finish_module, "_PAUSE_SECONDS", 0.01)
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.subject.split(".")[4])

    stream = scene.backend.config.work_stream
    await network_client(scene.link).subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.*.{stream}.>", cb=hear)
    await scene.link.nc.flush()
    scene.troubled(Trouble({name: list(fates) for name, fates in plan.items()}))
    await (put_raw(scene, b"{}") if flow is None else submitted(scene.backend, flow))
    await scene.run_id_after()
    if answers == ["MSG_NAKED"]:
        assert await scene.comes_again()
    else:
        await eventually(scene.has_gone)
    await eventually(lambda: len(heard) >= len(answers))
    assert heard == answers


class TestAJobThatNeedsNoWork:
    async def test_because_its_run_has_ended(self, scene: Scene) -> None:
        """FLOW-309"""
        run_id = await submitted(scene.backend, "fails")
        [message] = await jobs_left(scene.link, scene.backend.config)
        held = await claim_run(scene.backend, decode_job(message["text"].encode()), ANNA, first_delivery=True)
        assert isinstance(held, FlowAttempt)
        assert isinstance(await finish(scene.backend, held, Completed()), Ended)
        assert await scene.run_id_after() == run_id
        assert (await scene.run(run_id)).status is RunState.COMPLETED
        await eventually(scene.has_gone)
        assert await scene.letters() == []

    async def test_because_its_submission_was_withdrawn(self, scene: Scene) -> None:
        """FLOW-310, FLOW-75"""
        trouble = Trouble({"queue.put": [AFTER]})
        with pytest.raises(Unavailable):
            await submit(with_trouble(scene.backend, trouble), Caller(), a_submission("fails"))
        assert len(await jobs_left(scene.link, scene.backend.config)) == 1
        await scene.run_id_after()
        await eventually(scene.has_gone)
        assert await scene.letters() == []

    async def test_because_somebody_else_is_at_it(self, scene: Scene) -> None:
        """FLOW-311: it is put off, not removed."""
        run_id = await submitted(scene.backend, "fine")
        [message] = await jobs_left(scene.link, scene.backend.config)
        held = await claim_run(scene.backend, decode_job(message["text"].encode()), ANNA, first_delivery=True)
        assert isinstance(held, FlowAttempt)
        assert await scene.run_id_after() == run_id
        assert await scene.run(run_id) == held.run
        assert await scene.comes_again()
