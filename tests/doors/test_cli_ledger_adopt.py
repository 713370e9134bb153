"""`pyoco-server-admin ledger adopt` as a process: what it says, asks and changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import sqlite3
from pathlib import Path

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.known_ledger.jetstream import JetStreamKnownLedger
from pyoco_server.ports.ledger import migrate
from support.backup_commands import Admin, Ended, admin
from support.waiting import eventually
from support.warm_processes import started

__all__ = ["admin"]


class Site:
    """A deployment that uses the ledger `first`, and the command configured with another one."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self.known = JetStreamKnownLedger(admin.link, NatsBackendConfig())

    async def remembered(self) -> str | None:
        return (await self.known.get()).ledger_id

    async def adopt(self, *more: str) -> Ended:
        return await self.admin("ledger", "adopt", *more)


@pytest.fixture
async def site(admin: Admin) -> Site:
    found = Site(admin)
    admin.ledger.unlink()
    migrate.upgrade(f"sqlite:///{admin.ledger}")
    await found.known.start()
    assert await found.known.remember("first", await found.known.get())
    return found


def id_of(ledger: Path) -> str | None:
    return migrate.stored_id_at(f"sqlite:///{ledger}")


async def test_where_nobody_can_answer_it_says_what_is_lost_and_changes_nothing(site: Site) -> None:
    """SAFE-12: it needs --yes there"""
    refused = await site.adopt()
    assert (refused.code, refused.out) == (1, "")
    assert "This deployment uses the ledger first." in refused.err
    assert f"It will use the one at sqlite:///{site.admin.ledger}, which has the id {id_of(site.admin.ledger)}" in (
        refused.err
    )
    assert "Lost to this deployment is what only the ledger first holds: balances and credits" in refused.err
    assert "ERR-PYOCO-0018: nothing was changed" in refused.err
    assert await site.remembered() == "first"


async def test_said_so_it_adopts_the_ledger_once(site: Site) -> None:
    """SAFE-12"""
    own = id_of(site.admin.ledger)
    done = await site.adopt("--yes")
    assert done.code == 0
    assert json.loads(done.out) == {
        "before": "first",
        "after": own,
        "ledger": f"sqlite:///{site.admin.ledger}",
        "changed": True,
    }
    assert "Lost to this deployment" in done.err
    assert await site.remembered() == own
    again = await site.adopt()
    assert (again.code, json.loads(again.out)["changed"]) == (0, False)
    assert "nothing to change" in again.err


async def test_it_works_when_the_ledger_is_gone_and_creates_none(site: Site) -> None:
    """SAFE-12: the next gateway creates one"""
    site.admin.ledger.unlink()
    done = await site.adopt("--yes")
    assert (done.code, json.loads(done.out)["after"]) == (0, None)
    assert f"sqlite:///{site.admin.ledger} contains no ledger." in done.err
    assert "the next gateway that starts creates an empty one" in done.err
    assert "Lost to this deployment is what only the ledger first holds" in done.err
    assert await site.remembered() is None
    assert not site.admin.ledger.exists()


async def test_a_ledger_of_an_older_version_is_given_an_id(site: Site) -> None:
    with contextlib.closing(sqlite3.connect(site.admin.ledger)) as opened, opened:
        opened.execute("DELETE FROM ledger_settings WHERE name = 'ledger_id'")
    done = await site.adopt("--yes")
    assert "which has no id yet and is given one" in done.err
    assert json.loads(done.out)["after"] == id_of(site.admin.ledger) == await site.remembered() is not None


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)], ids=["no", "yes"])
async def test_on_a_terminal_it_asks(site: Site, answer: bytes, code: int) -> None:
    """SAFE-12"""
    ours, theirs = pty.openpty()
    process = await started(
        site.admin.arguments("ledger", "adopt"),
        stdin=theirs,
        stderr=theirs,
        cwd=site.admin.folder,
        env={**site.admin.environment, "TERM": "xterm"},
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    said = bytearray()

    def hear() -> None:
        with contextlib.suppress(OSError):
            said.extend(os.read(ours, 65536))

    asyncio.get_running_loop().add_reader(ours, hear)
    try:
        await eventually(lambda: b"Change it? [y/N]" in said)
        assert await site.remembered() == "first"
        os.write(ours, answer)
        ended = await site.admin.end(process)
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
    assert ended.code == code, said
    assert await site.remembered() == ("first" if code else id_of(site.admin.ledger))
