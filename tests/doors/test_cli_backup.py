"""`pyoco-server-admin backup` and `restore` as processes, on real servers: what they say, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from pyoco_server.doors.cli.admin import cli
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import open_link
from support.backup_commands import NAMES, RESOURCES, Admin, admin, write_fact
from support.servers import NatsServer
from support.waiting import eventually
from support.warm_processes import WarmProcess

__all__ = ["admin"]


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
    """Of a server with data of every kind, without writers."""
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


def test_help_shows_examples_and_takes_no_time() -> None:
    """FLOW-428"""
    context = click.Context(cli, info_name="pyoco-server-admin")
    for name in ("backup", "restore"):
        command = cli.get_command(context, name)
        assert command is not None
        text = command.get_help(click.Context(command, parent=context, info_name=name))
        assert f"pyoco-server-admin {name}" in text.split("Example:")[1]
