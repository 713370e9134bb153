"""The contract of the index: which runs repeat a run."""

from __future__ import annotations

import uuid
from dataclasses import replace

from contracts.index import MakeIndex, feed, opened
from contracts.runs import NOW, a_run
from pyoco_server.ports.index.port import EVERYBODY
from pyoco_server.ports.runs.port import Removed, Stored

__all__ = ["IndexRepeatsContract"]


class IndexRepeatsContract:
    async def test_the_runs_that_repeat_a_run_are_found_newest_first(self, make_index: MakeIndex) -> None:
        """CLI-18"""
        first, later, foreign, other = (str(uuid.uuid4()) for _ in range(4))
        repeats = [
            replace(a_run(), run_id=first, rerun_of="the run", submitted_at=NOW, tenant_id="a"),
            replace(a_run(), run_id=later, rerun_of="the run", submitted_at=NOW + 1, tenant_id="a"),
            replace(a_run(), run_id=foreign, rerun_of="the run", submitted_at=NOW + 2, tenant_id="b"),
            replace(a_run(), run_id=other, rerun_of="another", submitted_at=NOW + 3, tenant_id="a"),
        ]
        async with opened(make_index()) as index:
            await feed(index, *(Stored(run, revision) for revision, run in enumerate(repeats, 1)))
            assert await index.repeats("the run", EVERYBODY, 20) == [foreign, later, first]
            assert await index.repeats("the run", "a", 20) == [later, first]
            assert await index.repeats("the run", "a", 1) == [later]
            assert await index.repeats("no run", EVERYBODY, 20) == []
            await feed(index, Removed(later, 5))
            assert await index.repeats("the run", "a", 20) == [first]
