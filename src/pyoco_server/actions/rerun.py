"""Submit the work of a run again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyoco_server.actions.programs.requeue import Again, rerun_job
from pyoco_server.actions.read import read_run
from pyoco_server.actions.read_workflow import not_repeatable, read_workflow
from pyoco_server.actions.submit import Accepted
from pyoco_server.actions.submit_once import submit_once
from pyoco_server.core.delays import NO_DELAY, Delay
from pyoco_server.core.names import tag_problem
from pyoco_server.core.run import Caller, Run, Submission
from pyoco_server.errors import CATALOGUE, NotOfThisKind, Problem, Refused, TriedOnce
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.runs.port import Stored

__all__ = ["UNCHANGED", "RerunChange", "rerun"]

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class RerunChange:
    """What to change in the new run. None: as it was."""

    #: Merged over the old params at the top level. For named flows only.
    params: Mapping[str, Any] | None = None
    tag: str | None = None
    tags: tuple[str, ...] | None = None
    delay: Delay = NO_DELAY
    #: As in `Submission`.
    retry: Mapping[str, Any] | None = None
    timeout: float | None = None


UNCHANGED = RerunChange()


async def rerun(
    backend: GatewayBackend, caller: Caller, run_id: str, change: RerunChange, key: str | None = None
) -> Accepted:
    """Submit the same work as a new run, which belongs to the caller and names the old one in `rerun_of`.

    The old run may be in any state, and stays as it is. One read, then the cost of `submit_once`; an uploaded flow is
    also read from the object store, and its params are again those of the file. `key` is an idempotency key as in
    `submit_once`; no user can send one with a space in it. A repeat under the key needs the old run and its file, as
    the first call did. A crash leaves what a crash of `submit_once` leaves.

    Raises RunNotFound, also for another tenant's run; NotOfThisKind for a pack; NotRepeatable if the submission is no
    longer stored; Refused if a change is not possible.
    """
    old = (await read_run(backend, caller, run_id)).run
    if old.is_exec:
        return await _rerun_program(backend, caller, old, change, key)
    if old.is_pack:
        _check_tried_once(change)
    tag = change.tag if change.tag is not None else old.tag
    _check_repeatable(old, tag)
    again = _uploaded if old.workflow_yaml_sha256 is not None else _named
    retry = old.retry if change.retry is None else change.retry
    timeout = old.timeout if change.timeout is None else change.timeout
    ask = replace(await again(backend, old, change, tag), delay=change.delay, retry=retry, timeout=timeout)
    return await submit_once(backend, caller, ask, key)


async def _rerun_program(
    backend: GatewayBackend, caller: Caller, old: Run, change: RerunChange, key: str | None
) -> Accepted:
    """Submit a new job with the same content. The idempotency key takes the place of the job id."""
    if replace(change, delay=NO_DELAY, retry=None, timeout=None) != UNCHANGED:
        message = "cannot be changed for a program: submit another job"
        raise Refused(message, problems=(Problem(("body",), message, "forbidden"),))
    again = Again(delay=change.delay, retry=change.retry, timeout_sec=change.timeout)
    submitted = await rerun_job(backend, caller, old, key, again)
    return Accepted(Stored(submitted.run, submitted.revision), replayed=submitted.duplicate)


def _check_tried_once(change: RerunChange) -> None:
    """RETRY-19"""
    given = [name for name in ("retry", "timeout") if getattr(change, name) is not None]
    if given:
        problems = tuple(Problem(("body", name), CATALOGUE[TriedOnce.number].en, "forbidden") for name in given)
        raise TriedOnce(problems[0].msg, problems=problems)


def _check_repeatable(old: Run, tag: str) -> None:
    """Check that the record contains what a submission needs: records of other kinds and of foreign producers may
    not."""
    if old.is_pack:
        message = "is a priced one, which cannot be run again: submit it anew, under another idempotency key"
        raise NotOfThisKind(f"the run {message}", problems=(Problem(("path", "run_id"), message, "kind"),))
    if old.kind != "flow":
        raise not_repeatable(f"is of kind {old.kind}: only flows and programs can be run again", "kind")
    if not old.flow_name or tag_problem(tag) is not None:
        raise not_repeatable("has no flow name or no tag that a worker could serve", "incomplete")


async def _named(backend: GatewayBackend, old: Run, change: RerunChange, tag: str) -> Submission:
    if old.params_truncated and change.params is None:
        raise not_repeatable("was too large to keep its params: give all of them", "params_truncated")
    # Nothing can be merged over truncated params: the new params replace them completely.
    params = {**({} if old.params_truncated else old.params), **(change.params or {})}
    return Submission(
        flow_name=old.flow_name, tag=tag, tags=_labels(old, change, tag), params=params, rerun_of=old.run_id
    )


async def _uploaded(backend: GatewayBackend, old: Run, change: RerunChange, tag: str) -> Submission:
    if change.params is not None:  # FLOW-85, FLOW-171
        message = "cannot be overridden: the params of an uploaded flow are its flow.defaults"
        raise Refused(message, problems=(Problem(("body", "params"), message, "forbidden"),))
    data = await read_workflow(backend, old.workflow_yaml_sha256 or "")
    # Parsing YAML takes up to tens of milliseconds of CPU time: not on the event loop.
    file = await asyncio.to_thread(backend.flow_files.read, data)
    return Submission(
        flow_name=old.flow_name,
        tag=tag,
        tags=_labels(old, change, tag),
        params=file.defaults,
        workflow_yaml=file.text,
        workflow_yaml_sha256=file.sha256,
        workflow_yaml_bytes=file.size,
        rerun_of=old.run_id,
    )


def _labels(old: Run, change: RerunChange, tag: str) -> tuple[str, ...]:
    """Return the new or the old labels; a label that only repeated the old tag is replaced by the new tag."""
    if change.tags is not None:
        return change.tags
    return (tag,) if old.tags == (old.tag,) else old.tags
