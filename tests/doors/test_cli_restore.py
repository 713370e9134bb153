"""`pyoco-server-admin restore` as a process: confirmation, interruption, and the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from pyoco_server.config import NatsBackendConfig, PricedConfig
from pyoco_server.doors.cli.admin import cli
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.ports.known_ledger.jetstream import JetStreamKnownLedger
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.nats.resources import priced_resources
from support.backup_commands import Admin, admin, write_fact
from support.relays import RelayWire
from support.waiting import eventually
from support.warm_processes import WarmProcess, started

__all__ = ["admin"]


def facts_in(ledger: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(ledger)) as opened:
        return [fact for (fact,) in opened.execute("SELECT fact FROM facts ORDER BY rowid")]


async def test_replacing_asks_first_and_nobody_to_ask_is_an_error(admin: Admin) -> None:
    await admin("backup", "--to", "monday")
    await admin.write("newer")
    refused = await admin("restore", "--from", "monday")
    assert (refused.code, refused.out) == (1, "")
    assert "--replace removes that first, for good" in refused.err
    unasked = await admin("restore", "--from", "monday", "--replace")
    assert unasked.code == 1
    assert "KV_pyoco_runs: 1 messages" in unasked.err
    assert "ERR-PYOCO-0018: --replace asks before" in unasked.err
    assert await admin.keys() == {"newer"}
    done = await admin("restore", "--from", "monday", "--replace", "--yes", "--only", "KV_pyoco_runs", "--json")
    assert [stream["name"] for stream in json.loads(done.out)["streams"]] == ["KV_pyoco_runs"]
    assert await admin.keys() == set()


@contextlib.asynccontextmanager
async def asked(admin: Admin) -> AsyncIterator[tuple[WarmProcess, int, bytearray]]:
    """A restore on a terminal that waits for an answer; the terminal's other end; and what is on the screen."""
    await admin("backup", "--to", "monday")
    await admin.write("newer")
    ours, theirs = pty.openpty()
    process = await started(
        admin.arguments("restore", "--from", "monday", "--replace"),
        stdin=theirs,
        stderr=theirs,
        cwd=admin.folder,
        env={**admin.environment, "TERM": "xterm"},
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    said = bytearray()
    asyncio.get_running_loop().add_reader(ours, lambda: said.extend(_read(ours)))
    try:
        await eventually(lambda: b"[y/N]" in said)
        # A signal just before it reads would be heard only after the answer: Python looks for signals before that.
        await eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
        yield process, ours, said
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        said += _read(ours)
        os.close(ours)


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, {"newer"}), ("y", 0, set())])
async def test_a_person_on_a_terminal_is_asked_and_sees_bars(
    admin: Admin, answer: str, code: int, left: set[str]
) -> None:
    async with asked(admin) as (process, terminal, said):
        os.write(terminal, answer.encode() + b"\n")
        ended = await admin.end(process)
    assert ended.code == code
    assert await admin.keys() == left
    assert (b"\x1b[" in said) == (code == 0)  # the bars


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_who_is_asked_may_just_as_well_end_it(admin: Admin, number: signal.Signals) -> None:
    """FLOW-425: at once, and nothing is touched."""
    async with asked(admin) as (process, _, said):
        process.send_signal(number)
        ended = await admin.end(process)
    assert (ended.code, ended.out) == (130, "")
    assert b"Traceback" not in said
    assert await admin.keys() == {"newer"}


async def test_under_nohup_a_closed_terminal_ends_nothing(admin: Admin) -> None:
    for _ in range(100):
        await admin.link.store("$O.pyoco_wheels.C.one", os.urandom(500_000))
    pipe = asyncio.subprocess.PIPE
    command = ["nohup", *admin.command("backup", "--to", "monday")]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, cwd=admin.folder, env=admin.environment
    )
    folder = admin.folder / "monday"
    signs = (folder / "OBJ_pyoco_wheels" / "stream.tar.s2.part", folder / "backup.json")
    await eventually(lambda: any(sign.exists() for sign in signs))
    with contextlib.suppress(ProcessLookupError):  # on a busy machine we may look too late
        process.send_signal(signal.SIGHUP)
    assert (await admin.end(process)).code == 0
    assert (admin.folder / "monday" / "backup.json").is_file()


async def test_a_stream_that_is_not_there_is_told_of(admin: Admin) -> None:
    """By each command that reads or writes the backup: who restores it must know."""
    await admin.link.api("STREAM.DELETE.PYOCO_WORK", {}, dict[str, Any])
    made = await admin("backup", "--to", "monday", "--json")
    assert made.code == 0
    assert made.err == "not on this NATS server, and so not in the backup: PYOCO_WORK\n"
    assert json.loads(made.out)["missing"] == ["PYOCO_WORK"]
    whole = await admin("backup", "verify", "--from", "monday")
    assert "PYOCO_WORK: not there when it was made" in whole.out


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 100_000)
    except OSError:  # the other end is closed, or says nothing
        return b""


class _HoldingWire(RelayWire):
    """Passes nothing on from the moment at which a restore begins with the wheels."""

    def __init__(self, name: str, upstream_port: int) -> None:
        super().__init__(name, upstream_port)
        self.is_holding = asyncio.Event()

    def _wants(self, data: bytes) -> bool:
        if b"STREAM.RESTORE.OBJ_pyoco_wheels" in data:
            self.freeze()
            self.is_holding.set()
        return True


async def test_an_interrupted_restore_says_how_to_go_on(admin: Admin) -> None:
    """FLOW-425"""
    for _ in range(100):
        await admin.link.store("$O.pyoco_wheels.C.one", os.urandom(500_000))
    await admin.write("kept")
    await admin("backup", "--to", "monday")

    async with _HoldingWire("restore", urlsplit(admin.server.url).port or 0) as wire:
        await admin.forget()
        process = await admin.start("--nats-url", f"nats://127.0.0.1:{wire.port}", "restore", "--from", "monday")
        async with asyncio.timeout(120):
            await wire.is_holding.wait()
        process.send_signal(signal.SIGINT)
        ended = await admin.end(process)
    assert ended.code == 130
    assert "not restored: " in ended.err
    assert "Start nothing yet: repeat the command to continue from here." in ended.err
    again = await admin("restore", "--from", "monday")
    assert again.code == 0, again.err
    assert "already restored, not changed: PYOCO_DLQ" in again.err
    assert await admin.keys() == {"kept"}


async def test_the_ledger_is_in_the_backup_and_comes_back(admin: Admin) -> None:
    """PRICED-5: a backup without the rows would restore messages of unknown runs."""
    told = json.loads((await admin("backup", "--to", "monday", "--json")).out)
    assert told["ledger"] == {"bytes": (admin.folder / "monday" / "ledger" / "ledger.db").stat().st_size}
    write_fact(admin.ledger, "later")
    await admin.forget(with_ledger=False)
    refused = await admin("restore", "--from", "monday")
    assert refused.code == 1
    assert f"there is already a ledger at {admin.ledger}; --no-ledger keeps it" in refused.err
    unasked = await admin("restore", "--from", "monday", "--replace")
    assert "This removes the ledger that is there, with every money fact in it" in unasked.err
    assert facts_in(admin.ledger) == ["first", "later"]
    done = await admin("restore", "--from", "monday", "--replace", "--yes")
    assert done.code == 0, done.err
    assert facts_in(admin.ledger) == ["first"]
    assert stat.S_IMODE(admin.ledger.stat().st_mode) == 0o600
    assert list(admin.ledger.parent.glob("*.restoring")) == []


async def test_a_ledger_that_was_not_lost_stays_as_it_is(admin: Admin) -> None:
    """It knows more than the backup does: to put an older one back would forget money."""
    await admin.write("kept")
    await admin("backup", "--to", "monday")
    write_fact(admin.ledger, "later")
    await admin.forget(with_ledger=False)
    done = await admin("restore", "--from", "monday", "--no-ledger", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["ledger"] is None
    assert (await admin.keys(), facts_in(admin.ledger)) == ({"kept"}, ["first", "later"])


def test_a_ledger_that_is_both_wanted_and_not_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FLOW-426: of no names all would be restored, the ledger included."""
    words = ["restore", "--from", str(tmp_path), "--only", "ledger", "--no-ledger"]
    assert outcome(cli, "pyoco-server-admin", words) == 1
    assert "--no-ledger keeps the ledger, and --only names it: use one of them" in capsys.readouterr().err


async def test_a_ledger_that_is_elsewhere_is_told_of(admin: Admin) -> None:
    """A backup without the money must not look complete."""
    admin.ledger.unlink()
    ended = await admin("backup", "--to", "monday")
    assert (ended.code, "\n  ledger " in ended.out) == (0, False)
    assert f"there is no ledger at {admin.ledger}, and so none in the backup" in ended.err
    ended = await admin("backup", "--to", "tuesday", PYOCO_LEDGER_URL="postgresql://nobody@127.0.0.1:1/none")
    assert ended.code == 0
    assert "the ledger is in PostgreSQL, and so not in the backup: back it up with pg_dump" in ended.err


async def test_where_there_are_no_priced_runs_nothing_of_theirs_is_missed(admin: Admin) -> None:
    """A script for cron says nothing unless something is wrong."""
    for resource in priced_resources(NatsBackendConfig(), PricedConfig()):
        await admin.link.api(f"STREAM.DELETE.{resource.name}", {}, dict[str, Any])
    process = await started(
        admin.arguments("backup", "--to", "monday", "--json"),
        cwd=admin.folder,
        env={name: value for name, value in admin.environment.items() if name != "PYOCO_LEDGER_URL"},
    )
    ended = await admin.end(process)
    assert (ended.code, ended.err, json.loads(ended.out)["missing"]) == (0, "", [])


async def test_a_restored_ledger_is_the_one_that_the_deployment_uses(admin: Admin) -> None:
    """SAFE-12: whichever was used when the backup was restored, also when NATS itself was not restored"""
    admin.ledger.unlink()
    migrate.upgrade(f"sqlite:///{admin.ledger}")
    own = migrate.stored_id_at(f"sqlite:///{admin.ledger}")
    known = JetStreamKnownLedger(admin.link, NatsBackendConfig())
    assert own is not None
    assert await known.remember(own, await known.get())
    await admin("backup", "--to", "monday")
    assert await known.remember("another", await known.get())
    done = await admin("restore", "--from", "monday", "--only", "ledger", "--replace", "--yes")
    assert done.code == 0, done.err
    assert "this deployment used the ledger another; from now on it uses the restored one" in done.err
    assert (await known.get()).ledger_id == own
    assert await known.remember("another", await known.get())
    done = await admin("restore", "--from", "monday", "--replace", "--yes")
    assert done.code == 0, done.err
    assert (await known.get()).ledger_id == own, "the backup holds what was remembered, too"
