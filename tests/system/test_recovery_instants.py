"""Ledger and NATS are brought back to different instants: priced runs are started once, and their money is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.backups import back_up, put_back
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.states.priced import Status
from pyoco_server.loops.priced.sweeper import Sweeper
from pyoco_server.ports.backups.folder import FolderArchive
from pyoco_server.wiring.operating import open_backups
from support.priced.stacks import BOTH_MODES, open_stack

DOLLAR = 1_000_000


@pytest.mark.parametrize("kind", BOTH_MODES)
async def test_a_queue_that_is_older_than_the_ledger_lacks_nothing_in_the_end(
    kind: str, request: pytest.FixtureRequest, prepared: NatsBackendConfig, tmp_path: Path
) -> None:
    """PRICED-108, PRICED-158: NATS alone was lost, and its backup is older. What ended since does not run again, what
    waited then or came since is started once."""
    async with open_stack(kind, request, request.getfixturevalue("nats_url")) as stack:
        await stack.credit(DOLLAR)
        config, archive = stack.priced.config, FolderArchive(tmp_path / "backup")
        ended, waited = await stack.submitted(), await stack.submitted()
        async with open_backups(prepared, config) as streams:
            await back_up(prepared, streams, archive)
            await stack.work()
            after = (await stack.row(ended.run_id)).version
            late = await stack.submitted()
            await put_back(prepared, streams, archive, only=[config.pack_stream], may_replace=True, may_disturb=True)
        assert (await stack.priced.queue.depth())[0] == 2, "the one that ended, and the one that waited"
        stack.skew.move(61)
        await Sweeper(stack.priced).turn()
        await stack.drain()
        assert (await stack.row(ended.run_id)).version == after
        for run in (ended, waited, late):
            assert (await stack.row(run.run_id)).status is Status.COMPLETED
        assert await stack.balance() == DOLLAR - 3 * 50_000
        await stack.check_money()
