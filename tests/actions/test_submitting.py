"""Accepting a run, with every write failing before and after it took effect."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.actions.claim import FlowAttempt, Spent, claim_run
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.job import decode_job, encode_job, job_of, run_of
from pyoco_server.core.run import Caller, Submission
from pyoco_server.core.states import RunState
from pyoco_server.errors import NotStored, Refused, Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored, Withdrawn
from support.backends import ANNA, a_submission, jobs_left, logged, opened_backend
from support.faulty_ports import AFTER, BEFORE, UNHEARD, Trouble, with_trouble

RUN_ID = str(uuid.UUID(int=7))


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    """Its next run id is known beforehand."""
    async with opened_backend(config) as backend:
        yield replace(backend, new_id=lambda: RUN_ID)


class TestWithoutTrouble:
    async def test_the_record_is_written_first_and_then_one_job_and_nothing_else(
        self, backend: Backend, link: Link
    ) -> None:
        """FLOW-72, FLOW-73, FLOW-77, FLOW-346"""
        trouble = Trouble()
        ask = a_submission(tag="gpu", params={"text": "日本語"})
        stored = await submit(with_trouble(backend, trouble), Caller("acme", "k1"), ask)
        assert trouble.calls == ["runs.create", "queue.put"]
        assert stored.run.status is RunState.PENDING
        assert (stored.run.tasks, stored.run.heartbeat_at) == ({}, stored.run.submitted_at)
        assert await backend.runs.find(RUN_ID) == stored
        [job] = await jobs_left(link, backend.config)
        assert job["subject"] == f"{backend.config.work_subject_prefix}.gpu"
        assert f"Nats-Msg-Id: {RUN_ID}" in job["headers"]
        assert "日本語" in job["text"]  # FLOW-306
        assert decode_job(job["text"].encode()) == job_of(stored.run, ask, stored.revision)

    async def test_a_run_too_large_to_record_is_refused_and_leaves_nothing(self, backend: Backend, link: Link) -> None:
        """FLOW-71, FLOW-70"""
        ask = a_submission(params={"big": "x" * backend.config.max_run_snapshot_bytes})
        with pytest.raises(Refused):
            await submit(backend, Caller(), ask)
        assert not isinstance(await backend.runs.find(RUN_ID), Stored)
        assert await jobs_left(link, backend.config) == []

    async def test_a_taken_run_id_is_never_given_out_twice(self, backend: Backend, link: Link) -> None:
        first = await submit(backend, Caller(), a_submission(params={"n": 1}))
        with pytest.raises(Unavailable):
            await submit(backend, Caller(), a_submission(params={"n": 2}))
        assert await backend.runs.find(RUN_ID) == first
        assert len(await jobs_left(link, backend.config)) == 1


#: Which call fails how; what is left of record and job. None of these reports success.
FAILURES = [
    ({"runs.create": [BEFORE]}, None, 0),  # FLOW-74
    ({"runs.create": [UNHEARD]}, None, 0),  # FLOW-74
    ({"runs.create": [AFTER]}, RunState.PENDING, 0),  # the keeper sees it by its age
    ({"queue.put": [BEFORE]}, "withdrawn", 0),  # FLOW-75
    ({"queue.put": [UNHEARD]}, "withdrawn", 0),  # FLOW-75
    ({"queue.put": [AFTER]}, "withdrawn", 1),  # the job finds its run gone
    ({"queue.put": [BEFORE], "runs.withdraw": [BEFORE]}, RunState.PENDING, 0),  # FLOW-76
    ({"queue.put": [UNHEARD], "runs.withdraw": [UNHEARD]}, RunState.PENDING, 0),  # FLOW-76
    ({"queue.put": [BEFORE], "runs.withdraw": [AFTER]}, "withdrawn", 0),
    (
        {"queue.put": [AFTER], "runs.withdraw": [BEFORE]},
        RunState.PENDING,
        1,
    ),  # it runs without an answer
    ({"queue.put": [AFTER], "runs.withdraw": [AFTER]}, "withdrawn", 1),
]


@pytest.mark.parametrize(("plan", "record", "jobs"), FAILURES, ids=[str(plan) for plan, *_ in FAILURES])
async def test_a_submission_that_fails_anywhere_is_refused_and_leaves_no_job_without_a_run(
    backend: Backend,
    link: Link,
    caplog: pytest.LogCaptureFixture,
    plan: dict[str, list[str]],
    record: RunState | str | None,
    jobs: int,
) -> None:
    """FLOW-73 to FLOW-77"""
    expected = {name: list(fates) for name, fates in plan.items()}
    with caplog.at_level(logging.INFO), pytest.raises(Unavailable):
        await submit(with_trouble(backend, Trouble(expected)), Caller(), a_submission())
    found = await backend.runs.find(RUN_ID)
    assert _state_of(found) == record
    left = await jobs_left(link, backend.config)
    assert len(left) == jobs
    assert bool(logged(caplog.records, 4)) == ("runs.withdraw" in plan)  # FLOW-76
    for job in left:
        taken = await claim_run(backend, decode_job(job["text"].encode()), ANNA, first_delivery=True)
        # Withdrawn: dropped and never run (FLOW-310). Still there: it runs to its end like any other.
        assert isinstance(taken, Spent if record == "withdrawn" else FlowAttempt)


def _state_of(found: object) -> RunState | str | None:
    if isinstance(found, Stored):
        return found.run.status
    return "withdrawn" if isinstance(found, Withdrawn) else None


async def test_a_publish_whose_answer_was_lost_is_a_success_when_a_worker_has_the_run(
    backend: Backend, link: Link
) -> None:
    """FLOW-75: a withdraw that is lost means that the job was stored."""

    async def a_worker_is_fast() -> None:
        [job] = await jobs_left(link, backend.config)
        assert isinstance(
            await claim_run(backend, decode_job(job["text"].encode()), ANNA, first_delivery=True), FlowAttempt
        )

    trouble = Trouble({"queue.put": [AFTER]}, {"queue.put": a_worker_is_fast})
    stored = await submit(with_trouble(backend, trouble), Caller(), a_submission())
    assert stored.run.run_id == RUN_ID
    found = await backend.runs.find(RUN_ID)
    assert isinstance(found, Stored)
    assert (found.run.status, found.run.worker_id) == (RunState.RUNNING, "anna")


async def test_what_is_certain_stays_certain_on_the_way_to_the_caller(backend: Backend) -> None:
    with pytest.raises(NotStored):
        await submit(with_trouble(backend, Trouble({"runs.create": [UNHEARD]})), Caller(), a_submission())


names = st.text(min_size=1, max_size=8)
params = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e6, 1e6) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)
submissions: st.SearchStrategy[Submission] = st.builds(
    Submission,
    flow_name=names,
    tag=st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True),
    tags=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    params=params,
    workflow_yaml=st.none() | names,
    workflow_yaml_sha256=st.none() | names,
    workflow_yaml_bytes=st.none() | st.integers(0, 2**40),
)


def _no_surrogates(value: Any) -> bool:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(submissions, st.none() | names, st.none() | names, st.floats(1, 1e11), st.integers(1, 2**60))
def test_the_record_a_job_tells_of_is_the_one_that_was_accepted(
    ask: Submission, tenant_id: str | None, api_key_id: str | None, now: float, revision: int
) -> None:
    """FLOW-310. The first claim writes over the record without reading it: what the job lacked would be lost."""
    run = accept(ask, Caller(tenant_id, api_key_id), RUN_ID, now)
    job = job_of(run, ask, revision)
    assert run_of(job) == run
    if _no_surrogates((ask, tenant_id, api_key_id)):
        assert run_of(decode_job(encode_job(job))) == run
        assert decode_job(encode_job(job)) == job
