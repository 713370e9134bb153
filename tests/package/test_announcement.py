"""What a server that starts writes, and what it leaves behind (FIND-1 to FIND-3, FIND-6, FIND-9, FIND-11)."""

from __future__ import annotations

import json
import logging
import os
import stat
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import pepper_fingerprint
from pyoco_server.discovery.announcement import announced, without_credentials
from pyoco_server.discovery.server_file import LocalServer, decode, encode, is_running, read
from support.discovery import Machine, a_server

CONFIG = NatsBackendConfig(http_auth_mode="api_key", auth_pepper="a very secret pepper")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def announce(machine: Machine, **changed: str) -> AbstractContextManager[LocalServer | None]:
    return announced(
        command="up",
        data_dir=machine.place("data"),
        config=CONFIG,
        http=["http://127.0.0.1:8000"],
        nats=["nats://user:secret-password@127.0.0.1:1,nats://127.0.0.1:2"],
        frames="127.0.0.1:5000",
        environ={**machine.variables, **changed},
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def files(machine: Machine) -> list[Path]:
    return sorted(machine.state.iterdir()) if machine.state.exists() else []


def test_the_same_file_is_written_to_two_places_and_removed(machine: Machine) -> None:
    """FIND-1, FIND-2: modes are exact, whatever the umask."""
    before = os.umask(0o077)
    try:
        os.umask(0)
        with announce(machine) as server:
            assert server is not None
            here, [there] = machine.place("data") / "server.json", files(machine)
            assert there.name == f"{server.id}.json"
            assert here.read_bytes() == there.read_bytes()
            assert read(here) == server
            assert is_running(server)
            assert (mode(here), mode(there)) == (0o600, 0o600)
            assert [mode(folder) for folder in (there.parents[0], there.parents[1], there.parents[2])] == [0o700] * 3
            assert sorted(path.name for path in here.parent.iterdir()) == ["server.json"]
    finally:
        os.umask(before)
    assert not here.exists()
    assert files(machine) == []


def test_it_is_removed_when_the_server_fails(machine: Machine) -> None:
    """FIND-1"""
    with pytest.raises(ZeroDivisionError), announce(machine):
        raise ZeroDivisionError
    assert files(machine) == []


def test_the_file_says_what_runs_and_no_secret(machine: Machine) -> None:
    """FIND-2, FIND-3, FIND-11"""
    with announce(machine):
        text = files(machine)[0].read_text()
    assert "secret" not in text
    document = json.loads(text)
    assert (document["command"], document["format"], document["frames"]) == ("up", 1, "127.0.0.1:5000")
    assert (document["http"], document["nats"]) == (
        ["http://127.0.0.1:8000"],
        ["nats://127.0.0.1:1", "nats://127.0.0.1:2"],
    )
    assert document["data_dir"] == str(machine.place("data"))
    assert (document["pid"], document["hostname"], document["auth_mode"]) == (
        os.getpid(),
        os.uname().nodename,
        "api_key",
    )
    assert document["pepper_fingerprint"] == pepper_fingerprint("a very secret pepper")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("nats://token@host:1", "nats://host:1"),
        ("nats://u:p@ss@host:1", "nats://host:1"),
        ("u:p@host:1", "host:1"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("wss://host/path?token=x#y", "wss://host/path"),
    ],
)
def test_addresses_lose_their_credentials(address: str, shown: str) -> None:
    """FIND-3"""
    assert without_credentials(address) == shown


def test_the_fingerprint_is_that_of_the_contract() -> None:
    """FIND-11: SHA-256 of `pyoco-pepper`, a line feed and the pepper."""
    assert pepper_fingerprint("") == "none"
    assert pepper_fingerprint("s3cret") == "10f86e41688ab826"
    assert pepper_fingerprint("日本") != pepper_fingerprint("s3cret")


@pytest.mark.parametrize("spoilt", ["data", "state"])
def test_a_place_that_cannot_be_written_is_one_warning(
    machine: Machine, caplog: pytest.LogCaptureFixture, spoilt: str
) -> None:
    """FIND-2: the other place is written all the same."""
    if spoilt == "data":
        (machine.place("data") / "server.json").mkdir()
    else:
        (machine.folder / "state").write_text("a file in the way")
    with caplog.at_level(logging.WARNING), announce(machine) as server:
        assert server is not None
        assert len(files(machine)) == int(spoilt == "data")
        assert (machine.place("data") / "server.json").is_file() == (spoilt == "state")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "discovery file not written" in caplog.records[0].getMessage()
    assert list(machine.place("data").glob(".*")) == []


def test_a_link_is_replaced_and_not_followed(machine: Machine) -> None:
    """FIND-2: nobody can have another file overwritten by laying a link."""
    precious = machine.folder / "precious"
    precious.write_text("mine")
    link = machine.place("data") / "server.json"
    link.symlink_to(precious)
    with announce(machine):
        assert not link.is_symlink()
        assert read(link) is not None
    assert precious.read_text() == "mine"


def test_a_state_directory_that_is_a_link_is_refused(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """FIND-2"""
    elsewhere = machine.place("elsewhere")
    machine.state.parent.mkdir(parents=True)
    machine.state.symlink_to(elsewhere)
    with announce(machine):
        assert list(elsewhere.iterdir()) == []
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_state_directory_that_others_may_enter_is_closed(machine: Machine) -> None:
    """FIND-2"""
    machine.state.mkdir(parents=True)
    machine.state.chmod(0o777)
    with announce(machine):
        assert mode(machine.state) == 0o700


def test_the_file_of_a_server_that_runs_in_the_same_directory_stays(machine: Machine) -> None:
    """A door may use the data directory of `up`: both are in the state directory."""
    here = machine.place("data") / "server.json"
    with announce(machine) as first:
        with announce(machine):
            assert read(here) == first
            assert len(files(machine)) == 2
        assert read(here) == first
        assert first is not None
        here.write_bytes(encode(replace(first, id="another")))
    assert here.exists()


def test_stale_files_are_removed_by_the_next_server(machine: Machine) -> None:
    """FIND-6: of this user and this machine; what is no discovery file stays."""
    dead = machine.announce(a_server(machine.place("dead"), pid=2**22 + 1))
    reused = machine.announce(a_server(machine.place("reused"), pid_started_at=5.0))
    live = machine.announce(a_server(machine.place("live")))
    elsewhere = machine.announce(a_server(machine.place("far"), hostname="another-machine"))
    broken, notes = machine.state / "broken.json", machine.state / "notes.txt"
    broken.write_text("{")
    notes.write_text("mine")
    with announce(machine):
        assert not dead.exists()
        assert not reused.exists()
        assert not broken.exists()
        assert live.exists()
        assert elsewhere.exists()  # the home directory may be shared, and that server runs
        assert notes.exists()


def test_nothing_is_written_when_it_is_turned_off(machine: Machine) -> None:
    """FIND-9"""
    with announce(machine, PYOCO_DISCOVERY="0") as server:
        assert server is None
        assert list(machine.place("data").iterdir()) == []
        assert files(machine) == []


def test_readers_see_a_whole_file_at_any_time(machine: Machine) -> None:
    """FIND-2: a stale file is replaced at once; there is no moment with half of one."""
    here = machine.place("data") / "server.json"
    old = a_server(machine.folder, pid_started_at=5.0)
    here.write_bytes(encode(old))
    with here.open("rb") as held, announce(machine) as server:
        assert decode(held.read()) == old
        assert read(here) == server
