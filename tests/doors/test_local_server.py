"""Commands that connect use the server on this machine unless another one is named (FIND-4, FIND-5, FIND-7)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.discovery import is_quiet
from pyoco_server.discovery.server_file import LocalServer
from pyoco_server.doors.cli import admin, keeper, server, worker
from pyoco_server.doors.cli.client import cli as client
from pyoco_server.doors.cli.grid import cli as grid
from pyoco_server.doors.cli.local_server import find_door, settle, settle_nats
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.doors.mcp import stdio
from pyoco_server.embedded import EmbeddedNats
from pyoco_server.errors import SettingError, SeveralServers
from pyoco_server.http_client import AsyncPyocoHttpClient, PyocoHttpClient
from support.discovery import Machine, a_server

NATS, HTTP = "nats://127.0.0.1:4333", "http://127.0.0.1:8123"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """This process is one of that user, in a directory without a server."""
    machine = Machine(tmp_path)
    for name in [name for name in os.environ if name.startswith("PYOCO_")]:
        monkeypatch.delenv(name)
    for name, text in machine.variables.items():
        monkeypatch.setenv(name, text)
    monkeypatch.chdir(machine.place("elsewhere"))
    # A dotenv file is read into the variables of the process.
    before = dict(os.environ)
    yield machine
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


@pytest.fixture
def local(machine: Machine) -> LocalServer:
    """One server with its data elsewhere."""
    found = a_server(machine.place("one"))
    machine.announce(found)
    return found


COMMANDS: list[tuple[click.Command, list[str], str]] = [
    (worker.cli, [], "--nats-url nats"),
    (keeper.cli, [], "--nats-url nats"),
    (server.cli, ["gateway", "--port", "0"], "--nats-url nats"),
    (server.cli, ["doctor"], "--nats-url nats"),
    (admin.cli, ["api-key", "list"], "--nats-url nats"),
    (admin.cli, ["api-key", "create", "--tenant", "t"], "--nats-url nats"),
    (admin.cli, ["backup", "--to", "folder"], "--nats-url nats"),
    (admin.cli, ["budget", "show", "--tenant", "t"], "--nats-url nats"),
    (admin.cli, ["ledger", "status"], "--nats-url nats"),
    (admin.cli, ["replicas", "1", "--dry-run"], "--nats-url nats"),
    (admin.cli, ["prepare"], "--nats-url nats"),
    (grid, ["nworker"], "--nats nats"),
    (grid, ["router", "0", "--backend", "g=127.0.0.1:1"], "--nats nats"),
    (grid, ["state"], "--nats nats"),
    (grid, ["cap", "get", "c"], "--nats nats"),
    (grid, ["acl", "list"], "--nats nats"),
    (grid, ["dlq", "list"], "--nats nats"),
    (grid, ["worker"], "HOST PORT"),
    (grid, ["worker", "job.assign.calcA"], "HOST PORT"),
    (grid, ["client", "c"], "HOST PORT"),
    (grid, ["client", "c", "8"], "HOST PORT"),
    (grid, ["clientx", "c", "8"], "HOST:PORT"),
    (client, ["health"], "--server http"),
    (client, ["config"], "--server http"),
    (stdio.cli, [], "--server http"),
]


@pytest.mark.parametrize(("command", "arguments", "option"), COMMANDS, ids=str)
def test_every_command_refuses_to_choose_between_two(
    machine: Machine, capsys: pytest.CaptureFixture[str], command: click.Command, arguments: list[str], option: str
) -> None:
    """FIND-5, FIND-8: exit 1, nothing on stdout, one line per candidate with the command's own option."""
    for number in (1, 2):
        machine.announce(a_server(machine.place(f"s{number}")))
    assert outcome(command, "command", arguments) == 1
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("{")]
    assert out == "" or out.startswith("{")  # processes log there
    assert lines[0].startswith("ERR-PYOCO-0051: 2 local servers are running; choose one with ")
    assert option.split(" nats", maxsplit=1)[0].split(" http", maxsplit=1)[0] in lines[0]
    for number in (1, 2):
        place = f" of {machine.place(f's{number}')}/.pyoco (pid {os.getpid()})"
        assert [line for line in lines if line.endswith(place)] != []
    shown = {"HOST PORT": "127.0.0.1 5123 of ", "HOST:PORT": "127.0.0.1:5123 of "}.get(option, option)
    assert lines[1].startswith(f"  {shown}")


def test_one_server_supplies_nats_and_data_directory(
    machine: Machine, local: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """FIND-4, FIND-7: one line on stderr."""
    settled = settle()
    assert settled.has_nats
    assert (settled.config.nats_url, settled.config.data_dir) == (NATS, local.data_dir)
    assert capsys.readouterr() == ("", f"using {NATS} of {local.data_dir} (pid {os.getpid()})\n")


def test_what_somebody_has_named_wins(
    machine: Machine, local: LocalServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FIND-4: option, environment, dotenv file, then the local server."""
    other = "nats://127.0.0.1:1"
    assert settle(nats_url=other).config.nats_url == other
    assert settle(nats_url=other).config.data_dir == ".pyoco"  # that of another server is not taken
    assert settle(data_dir="mine").config.data_dir == "mine"
    assert settle(data_dir="mine").config.nats_url == NATS
    monkeypatch.setenv("PYOCO_NATS_URL", "nats://127.0.0.1:2")
    assert settle().config.nats_url == "nats://127.0.0.1:2"
    assert settle(nats_url=other).config.nats_url == other
    monkeypatch.delenv("PYOCO_NATS_URL")
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", "1")
    Path(".env").write_text("PYOCO_NATS_URL=nats://127.0.0.1:3\nPYOCO_DATA_DIR=from-file\n")
    capsys.readouterr()
    assert (settle().config.nats_url, settle().config.data_dir) == ("nats://127.0.0.1:3", "from-file")
    assert capsys.readouterr() == ("", "")


def test_the_data_of_a_stopped_server_are_not_combined_with_another_servers_nats(
    machine: Machine, local: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """FIND-4: neither is a mixture backed up, nor is one restored into the other."""
    stopped = machine.place("stopped") / ".pyoco"
    nats = EmbeddedNats(stopped, NatsBackendConfig(), host="127.0.0.1", port=4777, http_port=0)
    nats.command()  # writes its configuration
    settled = settle(data_dir=str(stopped))
    assert (settled.config.nats_url, settled.config.data_dir) == ("nats://127.0.0.1:4777", str(stopped))
    assert (settled.found, settled.has_nats) == (None, False)
    assert capsys.readouterr() == ("", "")
    machine.announce(a_server(machine.place("stopped"), nats=("nats://127.0.0.1:4778",)))  # it runs again
    assert settle(data_dir=str(stopped)).config.nats_url == "nats://127.0.0.1:4778"


def test_a_dotenv_file_can_turn_it_off(machine: Machine, local: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """FIND-9"""
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", "1")
    monkeypatch.delenv("PYOCO_DISCOVERY")
    Path(".env").write_text("PYOCO_DISCOVERY=0\n")
    assert not settle().has_nats


def test_the_address_of_a_local_server_brings_its_data_directory(machine: Machine, local: LocalServer) -> None:
    """FIND-4: of two servers with this NATS, none."""
    assert settle(nats_url=NATS).config.data_dir == local.data_dir
    assert settle_nats(nats_url=NATS).config.data_dir == ".pyoco"
    machine.announce(a_server(machine.place("two")))
    assert settle(nats_url=NATS).config.data_dir == ".pyoco"


def test_without_a_server_the_default_holds(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """FIND-4"""
    settled = settle()
    assert (settled.config.nats_url, settled.found, settled.has_nats) == ("nats://127.0.0.1:4222", None, False)
    assert find_door() is None
    assert capsys.readouterr() == ("", "")


def test_a_client_of_a_stopped_server_is_not_sent_to_another_one(
    machine: Machine, local: LocalServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FIND-4: PYOCO_DATA_DIR names a server; while it is stopped, the default address is used, with a warning."""
    stopped = str(machine.place("stopped") / ".pyoco")
    monkeypatch.setenv("PYOCO_DATA_DIR", stopped)
    assert outcome(client, "pyoco-client", ["config"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["server"] == {"value": "http://127.0.0.1:8000", "from": "default"}
    assert f"no server runs in PYOCO_DATA_DIR={stopped}; trying http://127.0.0.1:8000" in err
    assert find_door() is None
    machine.announce(a_server(machine.place("stopped"), http=("http://127.0.0.1:8124",)))
    assert outcome(client, "pyoco-client", ["config"]) == 0
    assert json.loads(capsys.readouterr().out)["server"]["value"] == "http://127.0.0.1:8124"


def test_the_line_can_be_left_out(
    machine: Machine, local: LocalServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FIND-7"""
    monkeypatch.setenv("PYOCO_QUIET", "1")
    assert settle().config.nats_url == NATS
    assert outcome(client, "pyoco-client", ["config"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("PYOCO_QUIET", "perhaps")
    with pytest.raises(SettingError, match="PYOCO_QUIET"):
        is_quiet(os.environ)


def test_a_door_is_found_with_its_port(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """FIND-5"""
    found = a_server(machine.place("one"), frames="[::1]:5000")
    machine.announce(found)
    door = find_door()
    assert door is not None
    assert (door.host, door.port) == ("::1", 5000)
    assert capsys.readouterr().err == f"using [::1]:5000 of {found.data_dir} (pid {os.getpid()})\n"


def test_config_names_the_file(machine: Machine, local: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    """FIND-10"""
    assert outcome(client, "pyoco-client", ["config"]) == 0
    out, err = capsys.readouterr()
    path = machine.state / f"{local.id}.json"
    assert json.loads(out)["server"] == {"value": HTTP, "from": f"discovery {path}"}
    assert err == f"using {HTTP} of {local.data_dir} (pid {os.getpid()})\n"


@pytest.mark.parametrize("named", ["option", "environment", "profile"])
def test_a_named_gateway_wins(
    machine: Machine,
    local: LocalServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    named: str,
) -> None:
    """FIND-4, also for the library"""
    options = ["--server", "http://127.0.0.1:9"] if named == "option" else []
    if named == "environment":
        monkeypatch.setenv("PYOCO_SERVER_URL", "http://127.0.0.1:9")
    if named == "profile":
        file = machine.folder / "config" / "pyoco" / "client.toml"
        file.parent.mkdir(parents=True)
        file.write_text('[default]\nserver = "http://127.0.0.1:9"\n')
    assert outcome(client, "pyoco-client", [*options, "config"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["server"]["value"] == "http://127.0.0.1:9"
    assert err == ""
    if named != "option":
        with PyocoHttpClient() as library:
            assert repr(library) == "PyocoHttpClient('http://127.0.0.1:9')"


async def test_the_library_finds_the_server_and_logs_it(
    machine: Machine, local: LocalServer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """FIND-5, FIND-7: at INFO, and nothing on the terminal."""
    with caplog.at_level(logging.INFO, "pyoco_server.client"):
        with PyocoHttpClient() as library:
            assert repr(library) == f"PyocoHttpClient('{HTTP}')"
        async with AsyncPyocoHttpClient() as other:
            assert repr(other) == f"AsyncPyocoHttpClient('{HTTP}')"
    line = f"using {HTTP} of {local.data_dir} (pid {os.getpid()})"
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [("INFO", line)] * 2
    assert capsys.readouterr() == ("", "")


def test_the_library_raises_when_there_are_two(machine: Machine, local: LocalServer) -> None:
    """FIND-8"""
    machine.announce(a_server(machine.place("two")))
    with pytest.raises(SeveralServers, match="choose one with base_url"):
        PyocoHttpClient()
    with pytest.raises(SeveralServers):
        AsyncPyocoHttpClient()
    with PyocoHttpClient("http://127.0.0.1:9") as library:  # named: nothing is looked for
        assert repr(library) == "PyocoHttpClient('http://127.0.0.1:9')"


def test_a_key_of_the_config_file_is_not_sent_to_a_found_server(
    machine: Machine, local: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """It belongs to the server that it was written down with; the file names none, so that is the default one."""
    file = machine.folder / "config" / "pyoco" / "client.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[default]\napi_key = "pyoco_0123456789abcdef_secret"\n')
    file.chmod(0o600)
    assert outcome(client, "pyoco-client", ["config"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["server"]["value"], shown["api_key"]["value"]) == (HTTP, None)
