"""The same submission again."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.objects import put
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.rerun import UNCHANGED, RerunChange, rerun
from pyoco_server.actions.submit_once import submit_once
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.outcome import Completed, Failed
from pyoco_server.core.run import Caller, Run, Submission
from pyoco_server.errors import (
    InvalidFlow,
    NotRepeatable,
    ObjectNotFound,
    Refused,
    RunNotFound,
    Unavailable,
    WorkflowTooLarge,
)
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.objects.kept import ConfirmedObjects
from pyoco_server.ports.objects.port import ObjectInfo
from pyoco_server.ports.runs.port import Stored
from support.backends import ANNA, a_submission, jobs_left
from support.faulty_ports import AFTER, Trouble, with_trouble
from support.gateway_backends import executed, opened_gateway_backend
from support.gateways import stock_of

TEXT = "flow:\n  graph: a\n  defaults: {word: from the file, n: [1, 2]}\n"
SHA256 = hashlib.sha256(TEXT.encode()).hexdigest()
NOBODY = Caller()
UPLOADED = a_submission(
    "main",
    "gpu",
    params={"word": "from the file", "n": [1, 2]},
    workflow_yaml=TEXT,
    workflow_yaml_sha256=SHA256,
    workflow_yaml_bytes=len(TEXT),
)
NAMED = a_submission("flow", "gpu", tags=("x", "y"), params={"a": 1, "b": {"c": 2, "d": 3}})


@pytest.fixture
async def backend(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[GatewayBackend]:
    async with opened_gateway_backend(config, tmp_path) as backend:
        yield backend


async def submitted(backend: GatewayBackend, ask: Submission, caller: Caller = NOBODY) -> Stored:
    return (await submit_once(backend, caller, ask)).stored


async def again(backend: GatewayBackend, old: Stored, **change: Any) -> Run:
    return (await rerun(backend, NOBODY, old.run.run_id, RerunChange(**change))).stored.run


async def rewritten(backend: GatewayBackend, old: Stored, **change: Any) -> Stored:
    """The record as a foreign client might have left it."""
    written = await backend.runs.replace(replace(old.run, **change), old.revision)
    assert isinstance(written, Stored)
    return written


class TestNamed:
    async def test_the_new_run_is_the_old_one_once_more(self, backend: GatewayBackend, link: Link) -> None:
        old = await submitted(backend, NAMED)
        run = await again(backend, old)
        assert run.run_id != old.run.run_id
        assert run.rerun_of == old.run.run_id
        new = Submission(flow_name=run.flow_name, tag=run.tag, tags=run.tags, params=run.params, rerun_of=run.rerun_of)
        assert new == replace(NAMED, rerun_of=old.run.run_id)
        assert await backend.runs.find(old.run.run_id) == old
        jobs = [job["body"] for job in await jobs_left(link, backend.config)]
        assert [job.get("rerun_of") for job in jobs] == [None, old.run.run_id]
        assert sorted(await executed(backend, link)) == sorted([old.run.run_id, run.run_id])

    async def test_params_are_laid_over_the_old_ones_at_the_top(self, backend: GatewayBackend) -> None:
        old = await submitted(backend, NAMED)
        run = await again(backend, old, params={"b": {"c": 9}, "e": None})
        assert run.params == {"a": 1, "b": {"c": 9}, "e": None}
        assert (await again(backend, old, params={})).params == NAMED.params

    async def test_a_rerun_can_be_run_again(self, backend: GatewayBackend) -> None:
        first = await submitted(backend, NAMED)
        second = await again(backend, first, params={"a": 2})
        third = (await rerun(backend, NOBODY, second.run_id, UNCHANGED)).stored.run
        assert (third.rerun_of, third.params["a"]) == (second.run_id, 2)

    @pytest.mark.parametrize(
        ("tags", "change", "expected"),
        [
            (("x", "y"), {}, ("gpu", ("x", "y"))),
            (("x", "y"), {"tag": "cpu"}, ("cpu", ("x", "y"))),
            (("gpu",), {"tag": "cpu"}, ("cpu", ("cpu",))),
            (("gpu",), {"tags": ("z",)}, ("gpu", ("z",))),
            (("gpu",), {"tag": "cpu", "tags": ()}, ("cpu", ())),
            (("gpu", "x"), {"tag": "cpu"}, ("cpu", ("gpu", "x"))),
        ],
    )
    async def test_tag_and_labels(
        self, backend: GatewayBackend, tags: tuple[str, ...], change: dict[str, Any], expected: tuple[str, Any]
    ) -> None:
        """Labels stay; one that only repeated the tag goes along with it."""
        old = await submitted(backend, replace(NAMED, tags=tags))
        run = await again(backend, old, **change)
        assert (run.tag, run.tags) == expected

    @pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLING", "CANCELLED"])
    async def test_any_state_of_the_old_run_will_do(self, backend: GatewayBackend, state: str) -> None:
        old = await submitted(backend, NAMED)
        if state.startswith("CANCEL"):
            old = await cancel(backend, NOBODY, old.run.run_id, None)
        elif state != "PENDING":
            old = await rewritten(backend, old, **vars(claim(old.run, ANNA, "a", 5.0)))
        if state in {"COMPLETED", "FAILED", "CANCELLED"}:
            outcome = Failed(message="x") if state == "FAILED" else Completed()
            old = await rewritten(backend, old, **vars(conclude(old.run, outcome, 6.0)))
        assert old.run.status.value == state
        run = await again(backend, old)
        assert (run.status.value, run.attempt, run.error, run.reason, run.tasks) == ("PENDING", 0, None, None, {})
        assert await backend.runs.find(old.run.run_id) == old

    async def test_params_that_were_cut_away_have_to_be_given(self, backend: GatewayBackend) -> None:
        """FLOW-363: an ended run may have lost them. What is given then is the whole."""
        left = {"a": "what is left"}
        old = await rewritten(backend, await submitted(backend, NAMED), params=left, params_truncated=True)
        with pytest.raises(NotRepeatable) as refused:
            await again(backend, old)
        assert refused.value.problems[0].type == "params_truncated"
        run = await again(backend, old, params={"b": 7})
        assert (run.params, run.params_truncated) == ({"b": 7}, False)

    async def test_params_too_large_are_refused(self, backend: GatewayBackend, link: Link) -> None:
        """FLOW-71"""
        old = await submitted(backend, NAMED)
        before = await stock_of(backend.config, link)
        with pytest.raises(Refused):
            await again(backend, old, params={"big": "x" * backend.config.max_run_snapshot_bytes})
        assert await stock_of(backend.config, link) == before


class TestUploaded:
    async def test_the_file_travels_again_and_its_params_are_its_own(self, backend: GatewayBackend, link: Link) -> None:
        """FLOW-171, FLOW-173; also when the record has lost them"""
        old = await rewritten(backend, await submitted(backend, UPLOADED), params={}, params_truncated=True)
        run = await again(backend, old, tag="cpu")
        assert (run.params, run.params_truncated) == ({"word": "from the file", "n": [1, 2]}, False)
        assert (run.workflow_yaml_sha256, run.workflow_yaml_bytes) == (SHA256, len(TEXT))
        assert (run.flow_name, run.tag, run.tags) == ("main", "cpu", ("cpu",))
        job = (await jobs_left(link, backend.config))[-1]["body"]
        assert (job["workflow_yaml"], job["rerun_of"], job["run_id"]) == (TEXT, old.run.run_id, run.run_id)

    @pytest.mark.parametrize("params", [{}, {"word": "mine"}])
    async def test_params_cannot_be_overridden(
        self, backend: GatewayBackend, link: Link, params: dict[str, Any]
    ) -> None:
        """FLOW-85, FLOW-171"""
        old = await submitted(backend, UPLOADED)
        before = await stock_of(backend.config, link)
        with pytest.raises(Refused) as refused:
            await again(backend, old, params=params)
        assert (refused.value.problems[0].loc, refused.value.problems[0].type) == (("body", "params"), "forbidden")
        assert await stock_of(backend.config, link) == before

    async def test_a_file_that_is_no_longer_kept_is_told(self, backend: GatewayBackend) -> None:
        old = await submitted(backend, UPLOADED)
        await backend.workflows.delete(SHA256)
        with pytest.raises(NotRepeatable) as refused:
            await again(backend, old)
        assert refused.value.problems[0].type == "workflow_gone"

    async def test_a_damaged_file_is_told_and_never_run(self, backend: GatewayBackend, link: Link) -> None:
        """Whether the store knows it or not"""
        old = await submitted(backend, UPLOADED)
        await put(backend.workflows, SHA256, b"flow: {graph: something_else}\n")
        with pytest.raises(NotRepeatable) as refused:
            await again(backend, old)
        assert refused.value.problems[0].type == "workflow_damaged"
        # The same length, and bytes that are not those of the digest.
        await put(backend.workflows, SHA256, TEXT.encode())
        info = await backend.workflows.info(SHA256)
        bucket = backend.config.workflow_object_store_bucket
        purge = {"filter": f"$O.{bucket}.C.{info.object_id}"}
        await link.api(f"STREAM.PURGE.OBJ_{bucket}", purge, dict[str, Any])
        await link.store(purge["filter"], b"x" * len(TEXT))
        with pytest.raises(NotRepeatable) as refused:
            await again(backend, old)
        assert refused.value.problems[0].type == "workflow_damaged"

    async def test_a_file_stored_anew_while_it_is_read_is_read_again(self, backend: GatewayBackend) -> None:
        old = await submitted(backend, UPLOADED)

        async def stored_anew() -> None:
            await put(backend.workflows, SHA256, TEXT.encode())

        trouble = Trouble(meanwhile={"workflows.info": stored_anew})
        busy = with_trouble(backend, trouble, "workflows")
        accepted = await rerun(busy, NOBODY, old.run.run_id, UNCHANGED)
        assert accepted.stored.run.params == UPLOADED.params
        assert trouble.calls == ["workflows.info", "workflows.info"]

    async def test_a_file_that_never_stands_still_is_given_up(self, backend: GatewayBackend) -> None:
        old = await submitted(backend, UPLOADED)
        real = backend.workflows

        class Restless:
            async def info(self, name: str) -> ObjectInfo:
                return await real.info(name)

            async def read(self, info: ObjectInfo) -> AsyncIterator[bytes]:
                if info.size_bytes:
                    raise ObjectNotFound
                yield b""

        restless: Any = Restless()
        with pytest.raises(NotRepeatable):
            await rerun(replace(backend, workflows=restless), NOBODY, old.run.run_id, UNCHANGED)

    async def test_settings_of_today_count(self, backend: GatewayBackend) -> None:
        """A file that would be refused now is refused now (FLOW-168), before it is read."""
        old = await submitted(backend, UPLOADED)
        smaller = replace(backend, config=replace(backend.config, workflow_yaml_max_bytes=10))
        with pytest.raises(WorkflowTooLarge):
            await rerun(smaller, NOBODY, old.run.run_id, UNCHANGED)

    async def test_a_file_that_breaks_the_policy_of_today_is_refused(self, backend: GatewayBackend) -> None:
        """An older version may have accepted it."""
        bad = "flow: {graph: a, more: 1}\n"
        sha256 = hashlib.sha256(bad.encode()).hexdigest()
        old = await submitted(backend, replace(UPLOADED, workflow_yaml=bad, workflow_yaml_sha256=sha256))
        with pytest.raises(InvalidFlow):
            await again(backend, old)

    async def test_the_file_is_kept_for_the_new_run_too(self, backend: GatewayBackend) -> None:
        """It may be about to leave."""
        old = await submitted(backend, UPLOADED)
        first = await backend.workflows.info(SHA256)
        retention = backend.config.runs_retention_sec
        late = replace(backend, clock=lambda: first.modified + retention + 5, kept_workflows=ConfirmedObjects())
        await rerun(late, NOBODY, old.run.run_id, UNCHANGED)
        assert (await backend.workflows.info(SHA256)).object_id != first.object_id


class TestWho:
    async def test_the_new_run_belongs_to_who_asked(self, backend: GatewayBackend) -> None:
        old = await submitted(backend, NAMED, Caller("acme", "k1"))
        run = (await rerun(backend, Caller("acme", "k2"), old.run.run_id, UNCHANGED)).stored.run
        assert (run.tenant_id, run.api_key_id) == ("acme", "k2")

    async def test_what_one_may_not_see_one_may_not_run(self, backend: GatewayBackend, link: Link) -> None:
        """FLOW-273, FLOW-275. Not even whether it could be repeated is shown."""
        theirs = await submitted(backend, replace(UPLOADED, tag="default"), Caller("acme", "k1"))
        nobodys = await submitted(backend, NAMED)
        before = await stock_of(backend.config, link)
        for run_id in (theirs.run.run_id, nobodys.run.run_id, backend.new_id(), "x", "*"):
            for change in (UNCHANGED, RerunChange(params={"x": 1})):
                with pytest.raises(RunNotFound):
                    await rerun(backend, Caller("other", "k3"), run_id, change)
        assert await stock_of(backend.config, link) == before

    @pytest.mark.parametrize("change", [{"kind": "errand"}, {"tag": ""}, {"tag": "a b"}, {"flow_name": ""}])
    async def test_records_that_are_no_whole_flow_cannot_be_repeated(
        self, backend: GatewayBackend, change: dict[str, Any]
    ) -> None:
        old = await rewritten(backend, await submitted(backend, NAMED), **change)
        with pytest.raises(NotRepeatable) as refused:
            await again(backend, old)
        assert refused.value.problems
        if change.get("tag") == "":
            assert (await again(backend, old, tag="gpu")).tag == "gpu"


class TestKeys:
    async def test_a_key_makes_it_one_run(self, backend: GatewayBackend, link: Link) -> None:
        """Also after a crash between its record and its job"""
        old = await submitted(backend, NAMED)
        cut_short = with_trouble(backend, Trouble({"runs.create": [AFTER]}), "runs", "queue", "receipts")
        with pytest.raises(Unavailable):
            await rerun(cut_short, NOBODY, old.run.run_id, UNCHANGED, "key")
        first, second = [await rerun(backend, NOBODY, old.run.run_id, UNCHANGED, "key") for _ in range(2)]
        assert first.stored.run.run_id == second.stored.run.run_id
        assert second.replayed
        assert sorted(await executed(backend, link)) == sorted([old.run.run_id, first.stored.run.run_id])
