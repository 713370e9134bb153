"""Discovery files: which ones are trusted, and which server is meant (FIND-2 to FIND-9)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pyoco_server.discovery import FRAMES, HTTP, NATS, Need, find, find_in, is_quiet
from pyoco_server.discovery.server_file import LocalServer, decode, encode, is_running, read, started_at, state_folder
from pyoco_server.errors import SettingError, SeveralServers
from support.discovery import Machine, a_server


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.chdir(machine.place("elsewhere"))
    return machine


def server_found(machine: Machine, need: Need, **named: str) -> LocalServer:
    found = find(need, environ=machine.variables, **named)
    assert found is not None
    return found.server


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """FIND-2: all members of the format."""
    server = a_server(tmp_path)
    document = json.loads(encode(server))
    assert set(document) == {
        *("format", "id", "command", "version", "pid", "pid_started_at", "hostname", "started_at"),
        *("http", "nats", "frames", "data_dir", "auth_mode", "pepper_fingerprint"),
    }
    assert document["format"] == 1
    assert decode(encode(server)) == server


@pytest.mark.parametrize("member", ["format", *asdict(a_server(Path("/x")))])
def test_a_file_without_a_member_is_no_server(member: str) -> None:
    """FIND-6"""
    document = json.loads(encode(a_server(Path("/x"))))
    del document[member]
    assert decode(json.dumps(document).encode()) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"format": True},
        {"pid": "1"},
        {"pid": 0},
        {"pid": 2**40},
        {"pid_started_at": True},
        {"pid_started_at": float("nan")},
        {"pid_started_at": 10**400},
        {"http": "http://127.0.0.1:1"},
        {"nats": [1]},
        {"data_dir": ".pyoco"},
        {"data_dir": "/x\nusing /y"},
        {"hostname": ""},
        {"frames": 5000},
    ],
    ids=str,
)
def test_a_file_with_a_wrong_member_is_no_server(changed: dict[str, object]) -> None:
    """FIND-6: what is printed to a terminal holds no control characters either."""
    document = json.loads(encode(a_server(Path("/x")))) | changed
    assert decode(json.dumps(document).encode()) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 60_000])
def test_what_is_no_object_is_no_server(content: bytes) -> None:
    """FIND-6"""
    assert decode(content) is None


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o400])
def test_a_file_that_others_may_read_is_trusted(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "server.json"
    path.write_bytes(encode(a_server(tmp_path)))
    path.chmod(mode)
    assert read(path) is not None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_trusted(tmp_path: Path, mode: int) -> None:
    """FIND-6"""
    path = tmp_path / "server.json"
    path.write_bytes(encode(a_server(tmp_path)))
    path.chmod(mode)
    assert read(path) is None


def test_a_file_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FIND-6"""
    path = tmp_path / "server.json"
    path.write_bytes(encode(a_server(tmp_path)))
    assert read(path) is not None
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert read(path) is None


def test_links_pipes_folders_and_huge_files_are_not_read(tmp_path: Path) -> None:
    """FIND-6: nothing is followed and nothing is waited for."""
    real = tmp_path / "real.json"
    real.write_bytes(encode(a_server(tmp_path)))
    (tmp_path / "link.json").symlink_to(real)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "huge.json").write_bytes(encode(a_server(tmp_path)) + b" " * 70_000)
    assert [read(path) for path in sorted(tmp_path.iterdir()) if path != real] == [None] * 4
    assert read(tmp_path / "missing.json") is None


def test_a_process_is_known_by_its_start() -> None:
    """FIND-6: a pid that was given to another process, a dead one, another machine."""
    server = a_server(Path("/x"))
    assert is_running(server)
    assert is_running(replace(server, pid_started_at=server.pid_started_at - 1.5))
    assert not is_running(replace(server, pid_started_at=server.pid_started_at - 2.5))
    assert not is_running(replace(server, pid_started_at=server.pid_started_at + 2.5))
    assert not is_running(replace(server, hostname="another-" + socket.gethostname()))


def test_a_process_that_has_ended_does_not_run_not_even_as_a_zombie() -> None:
    """FIND-6"""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        began = started_at(process.pid)
        assert began is not None
        server = a_server(Path("/x"), pid=process.pid, pid_started_at=began)
        assert is_running(server)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has reaped it
        assert not is_running(server)
    assert not is_running(server)


def test_the_server_of_the_current_directory_comes_first(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """FIND-4"""
    one, other = a_server(machine.place("one")), a_server(machine.place("other"), nats=("nats://127.0.0.1:2",))
    machine.announce(one)
    machine.announce(other)
    for folder, server in (("one", one), ("other", other)):
        monkeypatch.chdir(machine.place(folder))
        found = find(NATS, environ=machine.variables)
        assert found is not None
        assert found.server == server
        assert found.path == Path(server.data_dir, "server.json")
        assert found.address == server.nats[0]


def test_elsewhere_the_only_server_is_found(machine: Machine) -> None:
    """FIND-4, FIND-7"""
    server = a_server(machine.place("one"), nats=("nats://127.0.0.1:1", "nats://127.0.0.1:2"))
    path = machine.announce(server)
    found = find(NATS, environ=machine.variables)
    assert found is not None
    assert (found.server, found.path) == (server, path)
    assert found.line == f"using nats://127.0.0.1:1,nats://127.0.0.1:2 of {server.data_dir} (pid {os.getpid()})"
    assert found.origin == f"discovery {path}"


def test_of_several_none_is_chosen(machine: Machine) -> None:
    """FIND-8: one line per candidate, with the option that chooses."""
    servers = [a_server(machine.place(f"s{n}"), http=(f"http://127.0.0.1:{n}",)) for n in (1, 2)]
    for server in servers:
        machine.announce(server)
    with pytest.raises(SeveralServers) as refused:
        find(HTTP, environ=machine.variables)
    head, *lines = str(refused.value).splitlines()
    assert refused.value.text.err_id == "ERR-PYOCO-0051"
    assert head == "2 local servers are running; choose one with --server:"
    assert sorted(lines) == [f"  --server {each.http[0]} of {each.data_dir} (pid {each.pid})" for each in servers]


def test_a_door_beside_a_server_is_no_second_candidate(machine: Machine) -> None:
    """FIND-8: both have the same NATS and the same data directory"""
    up = a_server(machine.place("one"), started_at=1_796_101_200.0, frames=None)
    door = a_server(machine.place("one"), command="leader", http=(), started_at=1_796_101_300.0)
    for server in (door, up):
        machine.announce(server, data_dir=server is up)
    assert server_found(machine, NATS) == server_found(machine, HTTP) == up
    assert server_found(machine, FRAMES) == door
    machine.announce(a_server(machine.place("two")))
    with pytest.raises(SeveralServers, match="2 local servers"):
        find(NATS, environ=machine.variables)


def test_a_server_without_the_address_is_passed_over(machine: Machine) -> None:
    """FIND-4: a door without a gateway is no server for a client over HTTP."""
    door = a_server(machine.place("door"), command="leader", http=())
    machine.announce(door)
    assert find(HTTP, environ=machine.variables) is None
    assert server_found(machine, NATS) == door
    whole = a_server(machine.place("whole"), frames=None)
    machine.announce(whole)
    assert server_found(machine, HTTP) == whole
    assert server_found(machine, FRAMES) == door


def test_a_data_directory_of_another_name_counts_as_here(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """FIND-4"""
    here = a_server(machine.place("one"), data_dir=str(machine.place("one") / ".pyoco-cluster"))
    machine.announce(here)
    machine.announce(a_server(machine.place("other")))
    monkeypatch.chdir(machine.place("one"))
    assert server_found(machine, HTTP) == here


def test_a_named_data_directory_is_looked_into_first(machine: Machine) -> None:
    """FIND-4"""
    one, other = a_server(machine.place("one")), a_server(machine.place("other"))
    machine.announce(one)
    machine.announce(other)
    assert server_found(machine, HTTP, data_dir=other.data_dir) == other


def test_a_named_address_finds_its_own_server_only(machine: Machine) -> None:
    """FIND-4: the data directory of one server is not combined with the NATS of another."""
    server = a_server(machine.place("one"), nats=("nats://127.0.0.1:1",))
    machine.announce(server)
    for known in ("nats://user:secret@127.0.0.1:1", "127.0.0.1:1", "nats://127.0.0.1:9,nats://127.0.0.1:1/"):
        assert server_found(machine, NATS, known=known) == server
    assert find(NATS, known="nats://127.0.0.1:9", environ=machine.variables) is None


@pytest.mark.parametrize("spoilt", ["pid", "start", "host", "json", "writable"])
def test_a_stale_file_is_ignored_and_stays(machine: Machine, spoilt: str) -> None:
    """FIND-6"""
    live = a_server(machine.place("live"))
    machine.announce(live)
    gone = a_server(machine.place("gone"))
    if spoilt == "pid":
        gone = replace(gone, pid=2**22 + 1)  # above the kernel's highest
    if spoilt == "start":
        gone = replace(gone, pid_started_at=gone.pid_started_at - 100)
    if spoilt == "host":
        gone = replace(gone, hostname="elsewhere")
    path = machine.announce(gone)
    if spoilt == "json":
        path.write_text("{")
    if spoilt == "writable":
        path.chmod(0o666)
    assert server_found(machine, HTTP) == live
    assert path.exists()


def test_discovery_can_be_turned_off(machine: Machine) -> None:
    """FIND-9"""
    machine.announce(a_server(machine.place("one")))
    assert find(HTTP, environ={**machine.variables, "PYOCO_DISCOVERY": "0"}) is None
    assert find(HTTP, environ={**machine.variables, "PYOCO_DISCOVERY": ""}) is not None
    with pytest.raises(SettingError, match="PYOCO_DISCOVERY='no thanks' must be one of"):
        find(HTTP, environ={**machine.variables, "PYOCO_DISCOVERY": "no thanks"})


def test_the_line_can_be_turned_off() -> None:
    """FIND-7"""
    assert is_quiet({"PYOCO_QUIET": "1"})
    assert not is_quiet({})


def test_the_state_directory_is_that_of_the_xdg_specification(tmp_path: Path) -> None:
    """FIND-2"""
    assert state_folder({"XDG_STATE_HOME": "/s"}) == Path("/s/pyoco/servers")
    assert state_folder({"HOME": "/h"}) == Path("/h/.local/state/pyoco/servers")
    assert state_folder({"HOME": "/h", "XDG_STATE_HOME": "relative"}) == Path("/h/.local/state/pyoco/servers")
    assert state_folder({"HOME": "nowhere"}) is None


def test_a_current_directory_that_was_removed_is_no_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    server: LocalServer = a_server(machine.place("one"))
    machine.announce(server)
    gone = machine.place("gone")
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert server_found(machine, HTTP) == server


def test_no_other_server_stands_in_for_that_of_a_named_data_directory(machine: Machine) -> None:
    """FIND-4: for a client, a data directory is the name of a server."""
    machine.announce(a_server(machine.place("other")))
    named = a_server(machine.place("named"))
    assert find_in(named.data_dir, HTTP, machine.variables) is None
    for in_data_dir in (True, False):  # FIND-2: one of the two places may not be writable
        announced = machine.announce(named, data_dir=in_data_dir)
        found = find_in(named.data_dir, HTTP, machine.variables)
        assert found is not None
        assert found.server == named
        announced.unlink()
        Path(named.data_dir, "server.json").unlink(missing_ok=True)
    assert find_in(named.data_dir, HTTP, machine.variables) is None
    assert find_in(named.data_dir, HTTP, {**machine.variables, "PYOCO_DISCOVERY": "0"}) is None
