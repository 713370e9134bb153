"""What `pyoco-grid leader` makes of `--peers` when it brings its own NATS."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.config import NatsBackendConfig, grid_from_env
from pyoco_server.doors.cli.grid import cli
from pyoco_server.doors.cli.grid.beside import NatsOptions, nats_beside, settle
from pyoco_server.doors.cli.grid.members import ClusterMembers, read_members
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.errors import ExposureRefused, UsageError
from support.discovery import Machine, a_server

LOOPBACK = ("127.0.0.1:5600", "127.0.0.1:5601", "127.0.0.1:5602")
#: For documentation: no machine has them.
MACHINES = ("198.51.100.1:5600", "198.51.100.2:5600", "198.51.100.3:5600")


def members(
    peers: tuple[str, ...],
    port: int,
    host: str = "127.0.0.1",
    *,
    advertise: str | None = None,
    nats_port: int | None = None,
    route_port: int | None = None,
) -> ClusterMembers:
    return read_members(peers, host, port, advertise=advertise, nats_port=nats_port, route_port=route_port)


def ports(found: ClusterMembers) -> list[tuple[int, int]]:
    return [(each.client_port, each.route_port) for each in (found.node, *found.other_nodes)]


def test_a_door_finds_itself_by_its_port_and_an_address_of_this_machine() -> None:
    """FIND-13"""
    found = members(LOOPBACK, 5601)
    assert (found.own, found.others) == ("127.0.0.1:5601", ("127.0.0.1:5600", "127.0.0.1:5602"))
    assert found.is_local
    assert members(("localhost:5600", *LOOPBACK[1:]), 5600).own == "localhost:5600"


def test_the_address_that_it_listens_on_decides_between_two_of_this_machine() -> None:
    """FIND-13: several doors of one port, on loopback addresses of their own"""
    peers = ("127.0.0.1:5600", "127.0.0.2:5600", "127.0.0.3:5600")
    assert [members(peers, 5600, f"127.0.0.{place}").own for place in (1, 2, 3)] == list(peers)
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:5600 and 127\.0\.0\.2:5600 and .* --advertise"):
        members(peers, 5600, "0.0.0.0")


def test_advertise_says_which_one_it_is() -> None:
    """FIND-13"""
    assert members(MACHINES, 5600, "0.0.0.0", advertise=MACHINES[1]).own == MACHINES[1]
    with pytest.raises(UsageError, match=r"--advertise 198\.51\.100\.9:5600 is not in --peers"):
        members(MACHINES, 5600, advertise="198.51.100.9:5600")


def test_nobody_is_taken_for_this_machine_by_mistake() -> None:
    """FIND-13"""
    with pytest.raises(UsageError, match=r"no door of --peers .* is this machine with port 5600; .*--advertise"):
        members(MACHINES, 5600, "0.0.0.0")
    with pytest.raises(UsageError, match=r"no door of --peers .* is this machine with port 5700"):
        members(LOOPBACK, 5700)


def test_ports_of_nats_are_as_far_from_each_door_as_from_this_one() -> None:
    """FIND-13"""
    assert ports(members(LOOPBACK, 5600)) == [(5610, 5620), (5611, 5621), (5612, 5622)]
    assert ports(members(LOOPBACK, 5601, nats_port=4223)) == [(4223, 5621), (4222, 5620), (4224, 5622)]
    assert ports(members(LOOPBACK, 5600, route_port=6222)) == [(5610, 6222), (5611, 6223), (5612, 6224)]


@pytest.mark.parametrize(
    ("peers", "port", "says"),
    [
        ((), 5600, "names 0"),
        (LOOPBACK[:2], 5600, "names 2"),
        ((*LOOPBACK, "127.0.0.1:5603"), 5600, "names 4"),
        ((LOOPBACK[0], LOOPBACK[0], LOOPBACK[1]), 5600, "names 2"),
        (("127.0.0.1:5600", "127.0.0.1:5610", "127.0.0.1:5601"), 5600, r"127\.0\.0\.1:5610 would be used twice"),
        (("127.0.0.1:65530", "127.0.0.1:5601", "127.0.0.1:5602"), 5601, "65540.*does not exist"),
        ((LOOPBACK[0], *MACHINES[1:]), 5600, "another door on each machine"),
    ],
    ids=str,
)
def test_a_list_that_cannot_work_is_refused(peers: tuple[str, ...], port: int, says: str) -> None:
    """FIND-13: each with what to do instead"""
    with pytest.raises(UsageError, match=says) as refused:
        members(peers, port)
    assert "example:" in str(refused.value) or "name addresses" in str(refused.value)


def options(peers: tuple[str, ...], *, is_insecure: bool = False, advertise: str | None = None) -> NatsOptions:
    return NatsOptions(
        port=5600,
        host="0.0.0.0",
        role="auto",
        peers=peers,
        advertise=advertise or peers[0],
        nats_url=None,
        nats_port=None,
        nats_route_port=None,
        data_dir=None,
        is_insecure=is_insecure,
    )


def test_a_server_on_this_machine_is_used_unless_an_option_is_about_a_nats_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """FIND-13, FIND-4"""
    machine = Machine(tmp_path)
    found = a_server(tmp_path / "elsewhere")
    machine.announce(found)
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYOCO_NATS_URL", raising=False)
    monkeypatch.chdir(machine.place("here"))
    plain = replace(options(LOOPBACK), peers=(), role="leader")
    config, has_nats = settle(plain)
    assert (config.nats_url, has_nats) == (found.nats_url, True)
    assert f"using {found.nats_url} of {found.data_dir}" in capsys.readouterr().err
    own = (options(LOOPBACK), replace(plain, nats_port=4222), replace(plain, data_dir="data"))
    assert [settle(asked)[1] for asked in own] == [False] * 3
    monkeypatch.setenv("PYOCO_NATS_URL", "nats://127.0.0.1:4333")
    assert [settle(asked)[1] for asked in (plain, options(LOOPBACK))] == [True, True]
    assert capsys.readouterr().err == ""


def configured(folder: Path, asked: NatsOptions, secret: str = "") -> dict[str, object]:
    """The configuration of its NATS."""
    config = NatsBackendConfig(data_dir=str(folder))
    beside = nats_beside(asked, config, grid_from_env({}, exec_cluster_secret=secret))
    beside.data_dir.release()
    written: dict[str, object] = json.loads("{" + beside.nats.prepare().read_text().partition("\n")[2] + "}")
    return written


def test_nodes_of_several_machines_do_not_connect_without_a_secret(tmp_path: Path) -> None:
    """FIND-13: no NATS is opened to a network silently"""
    with pytest.raises(ExposureRefused, match="EXEC_CLUSTER_SECRET") as refused:
        configured(tmp_path, options(MACHINES))
    assert "--insecure" in str(refused.value)
    assert configured(tmp_path / "insecure", options(MACHINES, is_insecure=True))


def test_a_node_of_several_machines_is_reached_by_nodes_alone(tmp_path: Path) -> None:
    """FIND-13: its clients are processes of this machine"""
    names = ("n1.example:5600", "n2.example:5600", "n3.example:5600")
    written = configured(tmp_path, options(names), "0123456789abcdef")
    assert (written["host"], written["port"], written["server_name"]) == ("127.0.0.1", 5610, "nats-n1.example-5600")
    assert written["cluster"] == {
        "name": "pyoco",
        "host": "0.0.0.0",
        "port": 5620,
        "routes": [f"nats://pyoco:0123456789abcdef@n{number}.example:5620" for number in (2, 3)],
        "advertise": "n1.example:5620",
        "no_advertise": True,
        "authorization": {"user": "pyoco", "password": "0123456789abcdef"},
    }
    assert str(written["http"]).startswith("127.0.0.1:")


def test_a_node_of_this_machine_is_reached_from_nowhere_else(tmp_path: Path) -> None:
    """FIND-13"""
    written = configured(tmp_path, options(("127.0.0.2:5600", "127.0.0.3:5600", "127.0.0.4:5600")))
    assert (written["host"], written["cluster"]["host"]) == ("127.0.0.2", "127.0.0.2")  # type: ignore[index]
    assert written["cluster"]["routes"] == ["nats://127.0.0.3:5620", "nats://127.0.0.4:5620"]  # type: ignore[index]
    assert written["jetstream"]["sync_interval"] == "always"  # type: ignore[index]


def test_a_data_directory_keeps_its_kind_and_its_node(tmp_path: Path) -> None:
    """FIND-13: no node starts empty beside its data"""
    (tmp_path / "nats-127.0.0.9-5600" / "store").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"holds nats-127\.0\.0\.9-5600, another node"):
        configured(tmp_path, options(("127.0.0.2:5600", "127.0.0.3:5600", "127.0.0.4:5600")))


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "says"),
    [
        (["--role", "auto"], {}, 1, "--peers must name 3 doors"),
        (["--peers", ",".join(LOOPBACK)], {}, 1, "--role auto"),
        (["--nats-route-port", "6222"], {}, 1, "--nats-route-port is for a cluster"),
        (["--nats", "nats://127.0.0.1:1", "--nats-port", "4222"], {}, 1, "--nats-port"),
        (["--nats-route-port", "6222"], {"PYOCO_NATS_URL": "nats://127.0.0.1:1"}, 1, "runs already"),
        ([], {"PYOCO_NATS_USER": "door", "PYOCO_NATS_PASSWORD_FILE": __file__}, 1, "name it with --nats;"),
        ([], {"EXEC_CLUSTER_SECRET": "too short"}, 1, "EXEC_CLUSTER_SECRET must be"),
    ],
    ids=str,
)
def test_what_cannot_work_is_told_before_anything_is_started(
    arguments: list[str],
    variables: dict[str, str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """FIND-13, GRID-190"""
    monkeypatch.setattr("pyoco_server.logs.configure_logging", lambda _: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYOCO_NATS_URL", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert outcome(cli, "pyoco-grid", ["leader", "0", *arguments]) == code
    said = capsys.readouterr().err
    assert says in said
    assert "too short" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_port_of_nats_that_is_taken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """FIND-13, GRID-190: with the option that chooses another"""
    monkeypatch.setattr("pyoco_server.logs.configure_logging", lambda _: None)
    monkeypatch.delenv("PYOCO_NATS_URL", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--data-dir", str(tmp_path), "--nats-port", str(port)]
        assert outcome(cli, "pyoco-grid", ["leader", "0", *options]) == 1
    assert f"port {port} on 127.0.0.1 is already in use; stop what uses it or choose --nats-port" in (
        capsys.readouterr().err
    )
