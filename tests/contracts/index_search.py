"""The contract of the index: the search."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from contracts.index import MakeIndex, feed, ids, opened
from contracts.runs import NOW, a_run
from pyoco_server.core.flow_moves import ask_cancel, claim, conclude
from pyoco_server.core.outcome import Completed, Failed
from pyoco_server.core.run import PACK, Owner, Run
from pyoco_server.core.states import UNKNOWN, RunState
from pyoco_server.ports.index.port import Index, Mark, RunFilter
from pyoco_server.ports.runs.port import Removed, Stored
from support.grid.shown_programs import a_program

__all__ = ["IndexSearchContract"]

RUN_ID = "8880d642-cded-41b6-b0a4-90cd0412c4b7"


def a_sought_run(**more: Any) -> Run:
    params = {"city": "Kyoto", "deep": [{"n": 4711, "yes": True}, "half-life", 2.5], "東": "東京支店", "none": None}
    run = a_run(run_id=RUN_ID, flow_name="Nightly-Import", tag="gpu", tags=("gpu", "team:blue"), params=params, **more)
    return conclude(claim(run, Owner("w", "i"), "1", NOW), Failed(message="ZeroDivisionError: pump 7"), NOW + 1)


class IndexSearchContract:
    """An adapter passes all of it or does not ship."""

    @pytest.fixture
    async def index(self, make_index: MakeIndex) -> AsyncIterator[Index]:
        async with opened(make_index()) as index:
            yield index

    async def test_finds_a_run_by_id_flow_tag_label_param_and_error(self, index: Index) -> None:
        """CLI-16"""
        await feed(index, Stored(a_sought_run(), 1), Stored(a_run(run_id="7" * 36, params={"city": "Osaka"}), 2))
        found = "8880 8880D642-cd 8880d642cded gpu GPU blue team:blue nightly import nightly-import Night Kyoto kyo"
        for text in [
            *found.split(),
            RUN_ID,
            "4711",
            "true",
            "half-life",
            "2.5",
            "京",
            "東京",
            "支店",
            "zerodiv PUMP 7",
        ]:
            assert await ids(index, search=text) == [RUN_ID], text
        missing = "888 cded 47 osaka Kyotos import-nightly city team-gpu 都 支京 null kyoto4711"
        for text in [*missing.split(), "kyoto osaka", "pump 8", "-", "\0", "日本"]:
            assert RUN_ID not in await ids(index, search=text), text

    @pytest.mark.parametrize("text", ['"', 'pump"', "pump*", "NEAR(pump 7)", "pump^", "-pump", "text:pump", "a AND b"])
    async def test_takes_no_text_as_a_query_of_its_own(self, index: Index, text: str) -> None:
        await feed(index, Stored(a_sought_run(), 1))
        await ids(index, search=text)

    async def test_hides_what_only_the_owner_of_a_priced_run_may_see(self, index: Index) -> None:
        """CLI-16, SAFE-5: a caller without a key finds a priced run by its id and pack only, in every status."""
        run = a_run(run_id=RUN_ID, kind=PACK, flow_name="decision", tag="packs", tenant_id="t", params={"p": "secret"})
        ended = conclude(claim(run, Owner("w", "i"), "1", NOW), Failed(message="VENDOR: budget"), NOW + 1)
        versions = (run, claim(run, Owner("w", "i"), "1", NOW), replace(ended, status=RunState.CANCELLING), ended)
        for revision, version in enumerate(versions, 1):
            await feed(index, Stored(version, revision))
            for text in ("8880", "decision", "dec"):
                assert await ids(index, search=text) == await ids(index, search=text, tenant_id="t") == [RUN_ID]
            for text in ("secret", "packs", "decision secret", "8880 secret", "sec"):
                assert await ids(index, search=text) == []
                assert await ids(index, search=text, tenant_id="t") == [RUN_ID]
        assert await ids(index, search="vendor budget", tenant_id="t") == [RUN_ID]
        assert await ids(index, search="vendor") == []

    async def test_finds_runs_of_its_tenant_only(self, index: Index) -> None:
        """CLI-16"""
        await feed(index, *(Stored(a_run(tenant_id=tenant, updated_at=NOW), n) for n, tenant in enumerate("tu", 1)))
        assert len(await ids(index, search="flow")) == 2
        (line,) = (await index.page(RunFilter(search="flow", tenant_id="u"), 9)).items
        assert await ids(index, search=line.run_id, tenant_id="t") == []

    async def test_follows_each_change_of_a_run(self, index: Index) -> None:
        """CLI-16"""
        run = a_run(params={"city": "Kyoto"})
        running = claim(run, Owner("w", "i"), "1", NOW + 1)
        warned = replace(running, error="overdue", updated_at=NOW + 2)
        versions = (run, running, warned, ask_cancel(warned, None, NOW + 3), conclude(warned, Completed(), NOW + 4))
        for revision, version in enumerate(versions, 1):
            await feed(index, Stored(version, revision))
            assert await ids(index, search="kyoto", status=version.status.value) == [run.run_id]
            others = [status for status in RunState if status is not version.status]
            assert not [found for status in others for found in await ids(index, search="kyoto", status=status.value)]
            assert len(await ids(index, search="overdue")) == (version.error is not None)
        await feed(index, Removed(run.run_id, 9))
        assert await ids(index, search="kyoto") == []
        await index.reset("other")
        await index.apply((Stored(versions[-1], 1),), Mark("other", 1))
        assert await ids(index, search="kyoto") == [run.run_id]

    async def test_finds_a_run_whose_record_became_unreadable(self, index: Index) -> None:
        """SAFE-16: by what was last read of it."""
        other = "c" * 36
        await feed(index, Stored(a_sought_run(), 1))
        await feed(index, Removed(RUN_ID, 2, is_corrupt=True), Removed(other, 3, is_corrupt=True, stored_at=NOW))
        assert await ids(index, search="kyoto", status=UNKNOWN) == [RUN_ID]
        assert await ids(index, search="cccccc", status=UNKNOWN) == [other]

    async def test_finds_programs_by_job_and_client(self, index: Index) -> None:
        """CLI-16"""
        run = a_program(client_id="bert-7", group="g1", exec_name="render", job={"args": ["secret"]})
        assert run.program is not None
        await feed(index, Stored(run, 1), Stored(a_program(), 2))
        for text in ("bert-7", "render", run.program.job_id[:9], "exec:render g1"):
            assert await ids(index, search=text) == [run.run_id], text
        assert await ids(index, search="secret") == []

    async def test_reads_so_much_of_a_run_and_no_more(self, index: Index) -> None:
        """CLI-16"""
        nested: Any = "bottom"
        for _ in range(200):
            nested = [nested]
        endless = {"first": "begin", "second": "w" * 100_000, "third": "late"}
        odd = {"big": 10**5000, "nan": float("nan"), "nul": "a\0b", "half": "\ud800 whole"}
        runs = [a_run(params=params) for params in (endless, {"deep": nested}, {"many": list(range(5000))}, odd)]
        await feed(index, *(Stored(run, n) for n, run in enumerate(runs, 1)))
        found = {"begin": 0, "w" * 200: 0, "17": 2, "whole": 3, "nan": 3}
        assert {text: await ids(index, search=text) for text in found} == {
            text: [runs[number].run_id] for text, number in found.items()
        }
        for text in ("late", "bottom", "4999"):
            assert await ids(index, search=text) == []
