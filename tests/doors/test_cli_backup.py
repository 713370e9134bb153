"""`pyoco-server-admin backup` and `restore` as processes, on real servers: what they say, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import shutil
import signal
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil
import pytest

from pyoco_server.config import NatsBackendConfig, PricedConfig
from pyoco_server.doors.cli.admin import cli
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.ports.nats.link import Link, Rejected, open_link
from pyoco_server.ports.nats.resources import ensure, priced_resources, resources_of
from support.servers import NatsServer
from support.waiting import eventually
from support.warm_processes import WarmProcess, started

RESOURCES = (*resources_of(NatsBackendConfig()), *priced_resources(NatsBackendConfig(), PricedConfig()))
NAMES = [resource.name for resource in RESOURCES]


def write_fact(ledger: Path, fact: str) -> None:
    """What is in it does not matter here."""
    with contextlib.closing(sqlite3.connect(ledger, isolation_level=None)) as opened:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("CREATE TABLE IF NOT EXISTS facts (fact TEXT)")
        opened.execute("INSERT INTO facts VALUES (?)", (fact,))


def facts_in(ledger: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(ledger)) as opened:
        return [fact for (fact,) in opened.execute("SELECT fact FROM facts ORDER BY rowid")]


@dataclass(frozen=True)
class Ended:
    code: int | None
    out: str
    err: str


@dataclass
class Admin:
    """The command, against a server of this test's own."""

    server: NatsServer
    link: Link
    folder: Path
    ledger: Path

    def arguments(self, *arguments: str) -> list[str]:
        return ["-m", "pyoco_server.admin_cli", "--nats-url", self.server.url, *arguments]

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, *self.arguments(*arguments)]

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
        return {**clean, "PYOCO_LOAD_DOTENV": "false", "PYOCO_LEDGER_URL": f"sqlite:///{self.ledger}"}

    async def start(self, *arguments: str, **variables: str) -> WarmProcess:
        return await started(self.arguments(*arguments), cwd=self.folder, env=self.environment | variables)

    async def __call__(self, *arguments: str, **variables: str) -> Ended:
        return await self.end(await self.start(*arguments, **variables))

    async def end(self, process: asyncio.subprocess.Process | WarmProcess) -> Ended:
        async with asyncio.timeout(120):
            out, err = await process.communicate()
        said = (err or b"").decode()
        assert "Traceback" not in said, said  # FLOW-429
        return Ended(process.returncode, (out or b"").decode(), said)

    async def interrupt(self, process: WarmProcess, number: signal.Signals) -> Ended:
        """While the server is held, so that it cannot come to its end before."""
        server = self.server._process
        assert server is not None
        server.send_signal(signal.SIGSTOP)
        try:
            process.send_signal(number)
            return await self.end(process)
        finally:
            server.send_signal(signal.SIGCONT)

    async def write(self, key: str) -> None:
        await self.link.store(f"$KV.pyoco_runs.{key}", b"value")

    async def keys(self) -> set[str]:
        try:
            info = await self.link.api("STREAM.INFO.KV_pyoco_runs", {"subjects_filter": ">"}, dict[str, Any])
        except Rejected:
            return set()
        return {subject.rsplit(".", 1)[-1] for subject in info["state"].get("subjects") or {}}

    async def forget(self, *, with_ledger: bool = True) -> None:
        if with_ledger:
            self.ledger.unlink()
        for name in NAMES:
            await self.link.api(f"STREAM.DELETE.{name}", {}, dict[str, Any])


@pytest.fixture
async def admin(
    own_nats_server: NatsServer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Admin]:
    link = await open_link(own_nats_server.url, "tests")
    await ensure(link, RESOURCES)
    ledger = tmp_path_factory.mktemp("ledger") / "ledger.db"
    write_fact(ledger, "first")
    yield Admin(own_nats_server, link, tmp_path, ledger)
    await link.close()


async def test_a_backup_is_made_checked_and_restored(admin: Admin) -> None:
    """FLOW-423, FLOW-430, FLOW-475"""
    await admin.write("kept")
    made = await admin("backup", "--to", "monday", "--json")
    assert (made.code, made.err) == (0, "")
    told = json.loads(made.out)
    assert (told["result"], [stream["name"] for stream in told["streams"]]) == ("made", NAMES)
    whole = await admin("backup", "verify", "--from", "monday", "--json")
    assert json.loads(whole.out) == told | {"result": "whole"}
    await admin.forget()
    restored = await admin("restore", "--from", "monday")
    assert restored.code == 0, restored.err
    assert restored.err.splitlines()[-1].startswith("restoring KV_pyoco_runs: ")  # the runs last, after their jobs
    assert "restored." in restored.out
    assert await admin.keys() == {"kept"}


async def test_only_its_owner_may_read_a_backup(admin: Admin) -> None:
    """FLOW-538: it holds hashed keys and the params of runs."""
    folder = admin.folder / "monday"
    folder.mkdir(mode=0o755)
    assert (await admin("backup", "--to", "monday")).code == 0
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.glob("*/")]} == {0o700}


async def test_a_folder_with_something_in_it_is_not_written_to(admin: Admin) -> None:
    (admin.folder / "monday").mkdir()
    (admin.folder / "monday" / "mine").write_text("x")
    ended = await admin("backup", "--to", "monday")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "ERR-PYOCO-0033: monday is not empty: a backup needs a folder of its own\n"
    assert [path.name for path in (admin.folder / "monday").iterdir()] == ["mine"]


def _cut(folder: Path) -> None:
    file = folder / "KV_pyoco_runs" / "stream.tar.s2"
    file.write_bytes(file.read_bytes()[:-1])


def _alter(folder: Path) -> None:
    file = folder / "PYOCO_WORK" / "stream.tar.s2"
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)


def _append(folder: Path) -> None:
    with (folder / "PYOCO_WORK" / "stream.tar.s2").open("ab") as file:
        file.write(b"x")


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        document = json.loads((folder / "backup.json").read_bytes())
        change(document)
        (folder / "backup.json").write_text(json.dumps(document))

    return edit


BAD = {
    "a file is shorter": (_cut, "is shorter than the"),
    "a file is longer": (_append, "is longer than the"),
    "a file was altered": (_alter, "was altered"),
    "a file is missing": (lambda folder: (folder / "PYOCO_DLQ" / "stream.tar.s2").unlink(), "No such file"),
    "it was interrupted": (lambda folder: (folder / "backup.json").unlink(), "or was interrupted"),
    "no JSON": (lambda folder: (folder / "backup.json").write_text("{"), "cannot be read"),
    "another's JSON": (lambda folder: (folder / "backup.json").write_text("[1]"), "not one of a pyoco-server backup"),
    "of a newer kind": (_manifest(lambda document: document.update(format=2)), "this pyoco-server reads format 1"),
    "a name that leads elsewhere": (
        _manifest(lambda document: document["streams"][0].update(name="../other")),
        "is not a name it could have",
    ),
    "a file that leads elsewhere": (
        _manifest(lambda document: document["streams"][0]["files"][0].update(name="../../etc")),
        "is not a name it could have",
    ),
    "a figure that is none": (_manifest(lambda document: document["streams"][0].update(changes=-1)), "not a count"),
    "a stream twice": (_manifest(lambda document: document["streams"].append(document["streams"][0])), "one twice"),
    "no streams": (_manifest(lambda document: document.update(streams=[])), "it names no stream"),
    "a stream without its file": (
        _manifest(lambda document: document["streams"][0]["files"].pop(0)),
        "PYOCO_WORK has no stream.tar.s2",
    ),
    "a time that no calendar has": (_manifest(lambda document: document.update(made_at=1e18)), "is not a time"),
    "a consumer without a name": (
        _manifest(lambda document: document["streams"][0].update(consumers=[{}])),
        "'durable_name' is missing",
    ),
    "a text for the terminal": (_manifest(lambda document: document.update(made_by="\x1b[2J")), r"'\x1b[2J' is not"),
    "something missing": (_manifest(lambda document: document.pop("backup_id")), "'backup_id' is missing"),
    "the ledger is shorter": (
        lambda folder: (folder / "ledger" / "ledger.db").write_bytes(b"SQLite"),
        "ledger.db is shorter than the",
    ),
    "the ledger leads elsewhere": (
        _manifest(lambda document: document["ledger"].update(name="other.db")),
        "the ledger's file is called 'other.db'",
    ),
    "another's configuration": (
        _manifest(lambda document: document["streams"][0]["config"].update(name="OTHER")),
        "belongs to 'OTHER'",
    ),
}


@pytest.fixture(scope="session")
def good_backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a server that has everything; nobody writes to it."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    folder = tmp_path_factory.mktemp("backup") / "good"

    async def prepare() -> None:
        link = await open_link(server.url, "tests")
        await ensure(link, RESOURCES)
        await link.close()

    asyncio.run(prepare())
    data = tmp_path_factory.mktemp("data")
    write_fact(data / "ledger.db", "first")
    at = ["--nats-url", server.url, "--data-dir", str(data)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYOCO_PRICED_ENABLED", "1")
        assert outcome(cli, "pyoco-server-admin", [*at, "backup", "--to", str(folder), "--json"]) == 0
    server.kill()
    return folder


@pytest.mark.parametrize(("spoil", "says"), BAD.values(), ids=BAD)
def test_a_damaged_backup_is_told_before_a_server_is_touched(
    good_backup: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], None],
    says: str,
    nats_url: str,
) -> None:
    """FLOW-424"""
    import shutil

    folder = tmp_path / "backup"
    shutil.copytree(good_backup, folder)
    spoil(folder)
    commands = (["backup", "verify", "--from", str(folder)], ["--nats-url", nats_url, "restore", "--from", str(folder)])
    for arguments in commands:
        assert outcome(cli, "pyoco-server-admin", arguments) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("ERR-PYOCO-0033: ")
        assert says in said.err

    async def found() -> list[str]:
        link = await open_link(nats_url, "tests")
        answer = await link.api("STREAM.NAMES", {}, dict[str, Any])
        await link.close()
        return [name for name in answer["streams"] or [] if name in NAMES]

    assert asyncio.run(found()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["backup"], "--to is missing"),
        (["backup", "--to", "x", "verify", "--from", "x"], "--to makes one"),
        (["restore"], "Missing option '--from'"),
        (["restore", "--from", "x", "--replicas", "0"], "0 is not in the range"),
    ],
)
def test_bad_arguments_are_usage_errors(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """FLOW-426"""
    assert outcome(cli, "pyoco-server-admin", arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("ERR-PYOCO-0018: ")
    assert says in said
    assert "example: pyoco-server-admin " in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["restore", "--from", "nowhere"], "is not a folder"),
        (["restore", "--from", "."], "this is no backup"),
    ],
)
def test_what_is_no_backup_is_told(
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nats_url: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert outcome(cli, "pyoco-server-admin", ["--nats-url", nats_url, *arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith("ERR-PYOCO-0033: ")
    assert says in said


def test_a_server_without_anything_of_ours_makes_no_backup(
    own_nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = own_nats_server.url
    assert outcome(cli, "pyoco-server-admin", ["--nats-url", url, "backup", "--to", str(tmp_path / "new")]) == 1
    assert "there is nothing of pyoco-server on this NATS server" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("hasty_links")
def test_an_unreachable_server_is_told(unused_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FLOW-475"""
    url = f"nats://127.0.0.1:{unused_port}"
    assert outcome(cli, "pyoco-server-admin", ["--nats-url", url, "backup", "--to", str(tmp_path / "new")]) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("{")]  # a log has its own form
    assert told[0].startswith("ERR-PYOCO-0003: no NATS server answers")
    assert list(tmp_path.iterdir()) == []


async def test_a_full_disk_is_told_and_leaves_nothing(admin: Admin) -> None:
    """As far as a test can fill one: no file may grow above a kilobyte."""
    await admin.link.store("$KV.pyoco_runs.big", os.urandom(100_000))
    limited = ["sh", "-c", 'ulimit -f 20; trap "" XFSZ; exec "$@"', "sh", *admin.command("backup", "--to", "monday")]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *limited, stdout=pipe, stderr=pipe, cwd=admin.folder, env={**admin.environment, "PYTHONDONTWRITEBYTECODE": "1"}
    )
    ended = await admin.end(process)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-1].startswith("ERR-PYOCO-0032: cannot write monday/KV_pyoco_runs/stream.tar.s2: ")
    assert list(admin.folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_backup_leaves_nothing(admin: Admin, number: signal.Signals) -> None:
    """FLOW-425"""
    for _ in range(100):  # it takes a while, and the server is held in the middle of it
        await admin.link.store("$O.pyoco_wheels.C.one", os.urandom(500_000))
    for _ in range(10):
        ended = await admin.interrupt(await in_the_middle_of_a_backup(admin), number)
        if ended.code != 0:
            break
        shutil.rmtree(admin.folder / "monday")  # on a busy machine we may look too late
    assert ended.code == 130
    assert list(admin.folder.iterdir()) == []


async def in_the_middle_of_a_backup(admin: Admin) -> WarmProcess:
    """It has begun with the largest stream, and may have come to its end."""
    folder = admin.folder / "monday"
    process = await admin.start("backup", "--to", "monday")
    signs = (folder / "OBJ_pyoco_wheels" / "stream.tar.s2.part", folder / "backup.json")
    await eventually(lambda: any(sign.exists() for sign in signs))
    return process


async def test_a_killed_backup_is_none(admin: Admin) -> None:
    """kill -9: nothing can be tidied up, so the folder must say what it is."""
    for _ in range(100):
        await admin.link.store("$O.pyoco_wheels.C.one", os.urandom(500_000))
    for _ in range(10):
        process = await in_the_middle_of_a_backup(admin)
        process.kill()
        await process.communicate()
        if process.returncode != 0:
            break
        shutil.rmtree(admin.folder / "monday")  # on a busy machine we may look too late
    ended = await admin("backup", "verify", "--from", "monday")
    assert ended.code == 1
    assert "has no backup.json: it is still being made, or was interrupted and is of no use" in ended.err


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


async def test_an_interrupted_restore_says_how_to_go_on(admin: Admin) -> None:
    """FLOW-425"""
    for _ in range(100):
        await admin.link.store("$O.pyoco_wheels.C.one", os.urandom(500_000))
    await admin.write("kept")
    await admin("backup", "--to", "monday")

    async def is_in_the_middle() -> bool:
        names = (await admin.link.api("STREAM.NAMES", {}, dict[str, Any]))["streams"] or []
        return "KV_pyoco_receipts" in names

    for _ in range(10):
        await admin.forget()
        process = await admin.start("restore", "--from", "monday")
        await eventually(is_in_the_middle)
        ended = await admin.interrupt(process, signal.SIGINT)
        if ended.code != 0:
            break  # otherwise we looked too late, on a busy machine
    assert ended.code == 130
    assert "not restored: " in ended.err
    assert "Start nothing yet: the same restore, run again, goes on from here." in ended.err
    again = await admin("restore", "--from", "monday")
    assert again.code == 0, again.err
    assert "restored before, and left as it is: PYOCO_DLQ" in again.err
    assert await admin.keys() == {"kept"}


def test_help_shows_examples_and_takes_no_time() -> None:
    """FLOW-428"""
    context = click.Context(cli, info_name="pyoco-server-admin")
    for name in ("backup", "restore"):
        command = cli.get_command(context, name)
        assert command is not None
        text = command.get_help(click.Context(command, parent=context, info_name=name))
        assert f"pyoco-server-admin {name}" in text.split("Example:")[1]


async def test_the_ledger_is_in_the_backup_and_comes_back(admin: Admin) -> None:
    """PRICED-5: a backup without the rows would bring back messages of runs that nobody knows."""
    told = json.loads((await admin("backup", "--to", "monday", "--json")).out)
    assert told["ledger"] == {"bytes": (admin.folder / "monday" / "ledger" / "ledger.db").stat().st_size}
    write_fact(admin.ledger, "later")
    await admin.forget(with_ledger=False)
    refused = await admin("restore", "--from", "monday")
    assert refused.code == 1
    assert f"there is already a ledger at {admin.ledger}; --no-ledger leaves it as it is" in refused.err
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
    assert "--no-ledger leaves the ledger as it is, and --only names it: say one of them" in capsys.readouterr().err


async def test_a_ledger_that_is_elsewhere_is_told_of(admin: Admin) -> None:
    """Nobody should take a backup without the money for a whole one."""
    admin.ledger.unlink()
    ended = await admin("backup", "--to", "monday")
    assert (ended.code, "\n  ledger " in ended.out) == (0, False)
    assert f"there is no ledger at {admin.ledger}, and so none in the backup" in ended.err
    ended = await admin("backup", "--to", "tuesday", PYOCO_LEDGER_URL="postgresql://nobody@127.0.0.1:1/none")
    assert ended.code == 0
    assert "the ledger is in PostgreSQL, and so not in the backup: take it with pg_dump" in ended.err


async def test_where_there_are_no_priced_runs_nothing_of_theirs_is_missed(admin: Admin) -> None:
    """A script for cron says nothing unless something is wrong."""
    for resource in RESOURCES[len(resources_of(NatsBackendConfig())) :]:
        await admin.link.api(f"STREAM.DELETE.{resource.name}", {}, dict[str, Any])
    process = await started(
        admin.arguments("backup", "--to", "monday", "--json"),
        cwd=admin.folder,
        env={name: value for name, value in admin.environment.items() if name != "PYOCO_LEDGER_URL"},
    )
    ended = await admin.end(process)
    assert (ended.code, ended.err, json.loads(ended.out)["missing"]) == (0, "", [])
