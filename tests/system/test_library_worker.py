"""The library's worker: connecting, closing, foreign jobs, flow files, and an outage of NATS."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import uuid
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server import PyocoNatsWorker
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.errors import Unavailable
from pyoco_server.executors.capture.in_threads import NOTICE
from pyoco_server.ports.queue.intake import JetStreamIntake
from support import naughty
from support.backends import (
    a_submission,
    fields_of,
    submitted,
)
from support.collected_lines import stored_lines
from support.library_worker import Scene, backend, letter_of, put_raw, scene
from support.servers import NatsServer, config_for
from support.waiting import eventually

__all__ = ["backend", "scene"]

YAML = """
tasks:
  say: {callable: "support.naughty:fine", inputs: {n: 41}}
flow:
  defaults: {word: from the file}
  graph: say
"""


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
        assert worker._description.tags == ("mine",)
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
        await scene.worker._registration.stop()
        newer = await PyocoNatsWorker.connect(scene.backend.config, naughty.resolve)
        await scene.worker.close()
        assert (await scene.registered()).state is WorkerState.IDLE
        await newer.close()
        assert (await scene.registered()).state is WorkerState.STOPPED_GRACEFUL


class TestLines:
    async def test_are_stored_once_it_is_closed(self, scene: Scene) -> None:
        """LOG-1, LOG-28: those of runs in threads"""
        run_id = await submitted(scene.backend, "prints")
        assert await scene.run_id_after() == run_id
        assert (await scene.registered()).logs is not None
        await scene.worker.close()
        lines = await stored_lines(scene.backend, run_id)
        assert [(line.stream.value, line.task, line.text) for line in lines] == [
            ("system", None, NOTICE),
            ("stdout", "prints", "R" * 1000),
            ("stderr", "prints", "R" * 1000),
        ]


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
