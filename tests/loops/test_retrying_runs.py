"""Runs that are tried again, from the worker that fails them to the alarm that starts the next try."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyoco_server.actions.submit import submit
from pyoco_server.core.run import Caller
from pyoco_server.core.snapshot import shown_snapshot
from pyoco_server.core.states import RunState
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.reader import YamlFlowFiles
from pyoco_server.executors.threads import ThreadExecutor
from pyoco_server.ports.nats.link import Link
from support.backends import a_submission, a_world, dead_letters, has_ended, jobs_left, run_now
from support.flow_workers import a_worker
from support.keepers import keeping
from support.waiting import eventually

calls: list[str] = []


def fails_twice() -> str:
    calls.append("try")
    if len(calls) < 3:
        raise OSError("not yet")
    return "done"


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


FLOW = """
flow: {{graph: a, retry: "{policy}"}}
tasks: {{a: {{callable: "test_retrying_runs:fails_twice"}}}}
"""


@pytest.mark.parametrize(
    ("policy", "status", "tries"),
    [("3 times, fixed, 50ms", RunState.COMPLETED, 2), ("2 times, fixed, 50ms", RunState.FAILED, 2)],
)
async def test_a_flow_that_says_so_is_tried_again(
    link: Link, nats_url: str, tmp_path: Path, policy: str, status: RunState, tries: int
) -> None:
    """RETRY-12, RETRY-14, RETRY-15, RETRY-17"""
    calls.clear()
    builder = FlowBuilder(None, YamlFlowFiles(100_000), ["test_retrying_runs"])
    async with a_world(link, nats_url) as backend, keeping(backend, tmp_path):
        worker = a_worker(backend, ThreadExecutor(builder))
        await worker.start()
        try:
            text = FLOW.format(policy=policy)
            sha256 = hashlib.sha256(text.encode()).hexdigest()
            await backend.workflows.put(sha256, once(text.encode()), len(text))  # as a gateway does
            ask = a_submission(workflow_yaml=text, workflow_yaml_sha256=sha256, workflow_yaml_bytes=len(text))
            stored = await submit(backend, Caller(), ask)
            run_id = stored.run.run_id
            await eventually(lambda: has_ended(backend, run_id, status), 20)
        finally:
            await worker.stop("the test is over", 5.0)
        run = await run_now(backend, run_id)
        assert (len(run.tries), len(calls), run.attempt) == (tries, min(3, tries + (status == "COMPLETED")), len(calls))
        assert shown_snapshot(run)["retry"]["tries"] == int(policy[0])
        letters = [letter["body"]["tries"] for letter in await dead_letters(link, backend.config)]
        assert letters == ([] if status is RunState.COMPLETED else [list(run.tries)])
        assert await jobs_left(link, backend.config) == []
