"""The library's worker on a real NATS: every way a job can end, seen in the record, the dead letters and the queue."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server import PyocoNatsWorker
from pyoco_server.actions import claim as claim_module
from pyoco_server.actions import finish as finish_module
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.claim import Held, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import Job, decode_job, encode_job
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import Unavailable
from pyoco_server.loops.crew import Crew
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.intake import JetStreamIntake
from support import naughty
from support.backends import (
    ANNA,
    a_submission,
    consumer_state,
    dead_letters,
    fields_of,
    jobs_left,
    logged,
    opened_backend,
    run_now,
    submitted,
)
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble
from support.nats_clients import network_client
from support.servers import NatsServer, config_for
from support.waiting import eventually

YAML = """
tasks:
  say: {callable: "support.naughty:fine", inputs: {n: 41}}
flow:
  defaults: {word: from the file}
  graph: say
"""


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    quick = replace(config, run_heartbeat_interval_sec=0.1, worker_heartbeat_interval_sec=0.2)
    async with opened_backend(quick) as backend:
        yield backend


@dataclass
class Scene:
    """A worker, and everything it leaves traces in."""

    worker: PyocoNatsWorker
    backend: Backend
    link: Link

    async def run_id_after(self, timeout: float = 60.0) -> str | None:
        async with asyncio.timeout(200):
            return await self.worker.run_once(timeout)

    async def run_id_of_polls(self, timeout: float) -> str | None:
        """Of the first, unless a busy machine needs longer for an answer."""
        for _ in range(5):
            if (run_id := await self.worker.run_once(timeout)) is not None:
                return run_id
        return None

    async def run(self, run_id: str) -> Run:
        return await run_now(self.backend, run_id)

    async def letters(self) -> list[dict[str, Any]]:
        return [letter["body"] for letter in await dead_letters(self.link, self.backend.config)]

    async def has_gone(self) -> bool:
        """ACK and TERM remove a job for good: nothing is left, and nothing waits to come again."""
        state = await consumer_state(self.link, self.backend.config)
        return state["num_ack_pending"] == 0 and await jobs_left(self.link, self.backend.config) == []

    async def comes_again(self) -> bool:
        """NAK leaves it in the queue, with its timer running."""
        return len(await jobs_left(self.link, self.backend.config)) == 1

    async def registered(self) -> WorkerRecord:
        found = await self.backend.registry.find("worker")
        assert found is not None
        return found

    def troubled(self, trouble: Trouble) -> None:
        """From now on the worker's own calls may fail. They are counted, too."""
        faulty = with_trouble(self.worker._backend, trouble)
        old = self.worker._crew
        assert old is not None
        self.worker._crew = Crew(faulty, old._executor, old._me, old._pulse, old.max_deliver)


@pytest.fixture
async def scene(backend: Backend, link: Link) -> AsyncIterator[Scene]:
    worker = await PyocoNatsWorker.connect(backend.config, naughty.resolve)
    yield Scene(worker, backend, link)
    await worker.close()


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
            await cancel(backend, Caller(), run_id, None)

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


class TestConnecting:
    @pytest.mark.parametrize("tag", ["", "a.b", "a b", "*", ">", "a/b", "x" * 129, "a\n", "\u00a0"])
    async def test_refuses_a_tag_that_cannot_be_served(self, config: NatsBackendConfig, tag: str) -> None:
        """FLOW-34, FLOW-395"""
        with pytest.raises(ValueError, match="tag"):
            await PyocoNatsWorker.connect(config, naughty.resolve, tags=["fine", tag])

    @pytest.mark.parametrize("worker_id", ["", "a b", "a/b", ".a", "a.", "*", "日本", "x" * 201])
    async def test_refuses_a_worker_id_that_cannot_be_a_key(self, config: NatsBackendConfig, worker_id: str) -> None:
        """FLOW-38, FLOW-394"""
        with pytest.raises(ValueError, match="worker id"):
            await PyocoNatsWorker.connect(config, naughty.resolve, worker_id=worker_id)

    @pytest.mark.usefixtures("hasty_links")
    async def test_raises_the_nats_error_when_nobody_answers(self, unused_port: int) -> None:
        """FLOW-396, FLOW-286"""
        config = NatsBackendConfig(nats_url=f"nats://127.0.0.1:{unused_port}")
        with pytest.raises(Unavailable) as raised:
            await asyncio.wait_for(PyocoNatsWorker.connect(config, naughty.resolve), 100)
        assert raised.value.text.err_id == "ERR-PYOCO-0003"

    async def test_takes_its_settings_from_the_environment_and_the_default_tag(
        self, config: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-392, FLOW-393, FLOW-395"""
        for name in ("nats_url", "work_subject_prefix", "runs_kv_bucket", "workers_kv_bucket", "dlq_stream"):
            monkeypatch.setenv(f"PYOCO_{name.upper()}", getattr(config, name))
        for name in ("dlq_subject_prefix", "auth_kv_bucket", "wheel_history_kv_bucket", "wheel_object_store_bucket"):
            monkeypatch.setenv(f"PYOCO_{name.upper()}", getattr(config, name))
        monkeypatch.setenv("PYOCO_DEFAULT_TAG", "mine")
        monkeypatch.setattr(NatsBackendConfig, "from_env", _with_stream(config.work_stream))
        worker = await PyocoNatsWorker.connect(tags=[])
        assert worker._badge._tags == ("mine",)
        await worker.close()

    def test_and_working_and_closing_are_coroutines(self) -> None:
        """FLOW-400"""
        for method in (PyocoNatsWorker.connect, PyocoNatsWorker.run_once, PyocoNatsWorker.close):
            assert inspect.iscoroutinefunction(method)


def _with_stream(work_stream: str) -> Any:
    """The work stream has no variable (FLOW-388); on a shared server it needs a name of its own all the same."""
    real = NatsBackendConfig.from_env

    def from_env(*args: Any, **more: Any) -> NatsBackendConfig:
        return real(*args, **more, work_stream=work_stream)

    return staticmethod(from_env)


class TestClosing:
    async def test_records_the_orderly_stop_and_may_be_repeated(self, scene: Scene) -> None:
        """FLOW-198, FLOW-399"""
        await scene.worker.close("sigint")
        record = await scene.registered()
        assert (record.state, record.stop_reason) == (WorkerState.STOPPED_GRACEFUL, "sigint")
        await scene.worker.close()
        assert await scene.registered() == record

    async def test_says_close_when_nobody_says_more(self, scene: Scene) -> None:
        """FLOW-198"""
        await scene.worker.close()
        assert (await scene.registered()).stop_reason == "close"

    async def test_leaves_the_record_of_a_newer_worker(self, scene: Scene) -> None:
        """FLOW-200"""
        await scene.worker._pulse.stop()
        newer = await PyocoNatsWorker.connect(scene.backend.config, naughty.resolve)
        await scene.worker.close()
        assert (await scene.registered()).state is WorkerState.IDLE
        await newer.close()
        assert (await scene.registered()).state is WorkerState.STOPPED_GRACEFUL


async def put_raw(scene: Scene, body: bytes, tag: str = "default") -> None:
    await scene.link.store(f"{scene.backend.config.work_subject_prefix}.{tag}", body)


def letter_of(letter: dict[str, Any], reason: str, run_id: str | None) -> None:
    """FLOW-331 to FLOW-334, FLOW-337"""
    assert abs(letter["timestamp"] - time.time()) < 300
    assert letter["reason"] == reason
    assert isinstance(letter["error"], str)
    assert letter.get("run_id") == run_id
    assert (letter["tag"], letter["worker_id"]) == ("default", "worker")
    assert letter["num_delivered"] >= 1
    assert letter["subject"].endswith(".default")
    assert set(letter) <= {
        "timestamp", "reason", "error", "run_id", "flow_name", "tag", "tags", "worker_id", "num_delivered", "subject",
    }  # fmt: skip


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
        run_id = await submitted(scene.backend, "fine")
        if call == "runs.find":  # read only when the record has moved on
            await cancel(scene.backend, Caller(), run_id, None)
        scene.troubled(Trouble({call: [fate]}))
        with caplog.at_level(logging.ERROR):
            assert await scene.run_id_after() == run_id
        assert await scene.comes_again()
        assert await scene.letters() == []
        assert logged(caplog.records, 3)
        began = time.monotonic()
        if fate == AFTER and call == "runs.replace":
            # The claim had worked. While its heartbeat is fresh the run is left alone.
            assert await scene.run_id_after() == run_id
            assert (await scene.run(run_id)).status is RunState.RUNNING
        else:
            assert await scene.run_id_after() == run_id
            assert (await scene.run(run_id)).is_terminal
        assert time.monotonic() - began > 1.0

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
        assert isinstance(held, Held)
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
        assert isinstance(held, Held)
        assert await scene.run_id_after() == run_id
        assert await scene.run(run_id) == held.run
        assert await scene.comes_again()


class TestAForeignProducer:
    async def test_needs_neither_record_nor_revision(self, scene: Scene) -> None:
        """FLOW-296 to FLOW-305, FLOW-310"""
        run_id = str(uuid.uuid4())
        job = {
            "run_id": run_id,
            "flow_name": "fine",
            "tag": "default",
            "submitted_at": 12.5,
            "params": {"n": 1},
            "schema_version": 9,  # FLOW-305
        }
        await put_raw(scene, json.dumps(job).encode())
        assert await scene.run_id_after() == run_id
        run = await scene.run(run_id)
        assert (run.status, run.submitted_at, run.params) == (RunState.COMPLETED, 12.5, {"n": 1})
        await eventually(scene.has_gone)

    async def test_may_send_a_job_twice(self, scene: Scene) -> None:
        """FLOW-309"""
        job = Job(run_id=str(uuid.uuid4()), flow_name="fine", tag="default", submitted_at=1.0)
        for _ in range(2):
            await put_raw(scene, encode_job(job))
        assert [await scene.run_id_after() for _ in range(2)] == [job.run_id] * 2
        assert (await scene.run(job.run_id)).attempt == 1


class TestAFlowFile:
    async def submitted(self, scene: Scene, text: str) -> str:
        ask = a_submission(
            "from a file",
            params={"word": "from the file"},
            workflow_yaml=text,
            workflow_yaml_sha256="ab" * 32,
            workflow_yaml_bytes=len(text.encode()),
        )
        return (await submit(scene.backend, Caller(), ask)).run.run_id

    async def test_runs_under_the_name_of_its_submission(self, scene: Scene) -> None:
        """FLOW-170, FLOW-173, FLOW-368"""
        run_id = await self.submitted(scene, YAML)
        assert await scene.run_id_after() == run_id
        run = await scene.run(run_id)
        assert run.status is RunState.COMPLETED, run.error
        assert (run.flow_name, run.task_records["say"]["output"]) == ("from a file", 42)
        assert (run.workflow_yaml_sha256, run.workflow_yaml_bytes) == ("ab" * 32, len(YAML))
        assert run.params == {"word": "from the file"}

    async def test_that_breaks_the_policy_is_removed_and_its_text_is_nowhere(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-325, FLOW-337, FLOW-174"""
        with caplog.at_level(logging.DEBUG):
            run_id = await self.submitted(scene, YAML + "discovery: {modules: [s3cret_module_name]}\n")
            assert await scene.run_id_after() == run_id
        run = await scene.run(run_id)
        assert (run.status, run.reason) == (RunState.FAILED, "invalid_job")
        await eventually(scene.has_gone)
        [letter] = await scene.letters()
        letter_of(letter, "invalid_job", run_id)
        for text in (json.dumps(letter), str(run), *(f"{each.message} {fields_of(each)}" for each in caplog.records)):
            assert "s3cret_module_name" not in text
            assert "support.naughty:fine" not in text

    @pytest.mark.parametrize(
        "text",
        [
            "flow: {graph: nobody}",
            "tasks: {a: {use: nobody}}\nflow: {graph: a}",
            "tasks: {a: {callable: 'os:system'}}\nflow: {graph: a}",
            "tasks: {a: {callable: 'support.naughty:nobody'}}\nflow: {graph: a}",
        ],
        ids=["graph", "use", "callable", "missing"],
    )
    async def test_that_cannot_be_built_here_is_not_found(self, scene: Scene, text: str) -> None:
        """FLOW-326"""
        run_id = await self.submitted(scene, text)
        assert await scene.run_id_after() == run_id
        assert (await scene.run(run_id)).reason == "flow_not_found"
        await eventually(scene.has_gone)
        letter_of((await scene.letters())[0], "flow_not_found", run_id)

    async def test_leaves_nothing_for_the_next(self, scene: Scene) -> None:
        """FLOW-351, FLOW-377"""
        changing = "tasks: {it: {callable: 'support.naughty:changes_params'}}\nflow: {graph: it}"
        ask = a_submission("f", params={"nested": {"list": [1]}}, workflow_yaml=changing)
        for _ in range(2):
            run_id = (await submit(scene.backend, Caller(), ask)).run.run_id
            assert await scene.run_id_after() == run_id
            run = await scene.run(run_id)
            assert run.status is RunState.COMPLETED, run.error
            assert run.params == {"nested": {"list": [1]}}


async def test_polling_without_nats_raises_and_works_again_after_the_restart(own_nats_server: NatsServer) -> None:
    """FLOW-398, FLOW-468"""
    config = config_for(own_nats_server.url)
    worker = await PyocoNatsWorker.connect(config, naughty.resolve)
    assert isinstance(worker._intake, JetStreamIntake)
    worker._intake._link.patience = replace(worker._intake._link.patience, down_seconds=0.3)
    try:
        own_nats_server.kill()
        await eventually(lambda: not worker._backend.is_up())
        with pytest.raises(Unavailable):
            await worker.run_once(0.1)
        own_nats_server.start()
        await eventually(worker._backend.is_up)
        run_id = await submitted(worker._backend, "fine")
        assert await worker.run_once(60) == run_id
    finally:
        await worker.close()
