"""`pyoco-grid leader` without a NATS address: it brings one, alone or in a cluster of three."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from pyoco_server.discovery.server_file import read
from support.discovery import Machine
from support.grid.leaders import Leaders, grid_without_nats, leaders, nats_of
from support.grid.processes import Finished, Grid, GridProcess
from support.left_behind import standing_in
from support.stacks import until

_SECRET = "a-secret-that-all-three-machines-have"


def completed(done: Finished, jobs: int = 3) -> bool:
    assert done.code == 0, done
    return [line["Status"] for line in done.lines] == ["COMPLETED"] * jobs


def refused(processes: Grid, *options: object) -> str:
    """What a door says that does not start."""
    door = processes.leader(*options, waits=False)
    assert door.wait() == 1
    assert "READY" not in door.stdout
    return door.stderr


@pytest.mark.timeout(600)  # a busy machine needs minutes for it
def test_a_door_that_is_told_of_no_nats_starts_one_and_ends_with_it(tmp_path: Path) -> None:
    """FIND-13"""
    data = tmp_path / "data"
    with grid_without_nats(tmp_path) as processes:
        door = processes.leader("--data-dir", data)
        [nats] = nats_of(data)
        worker = processes.worker(door)
        assert completed(processes.client(door, "clientA"))
        # A second server must not open the same store.
        assert f"(pid {door.pid}) uses {data}" in refused(processes, "--data-dir", data)

        # NATS is started again when it dies, and the door goes on.
        nats.kill()
        until(lambda: [each for each in nats_of(data) if each.pid != nats.pid], 60, "another NATS")
        assert completed(processes.client(door, "clientB"))

        # With the door its NATS goes, also after kill -9; what was stored is there the next time.
        job = ("--job-id", "0b0e7f0e-6f0b-4a51-9b1c-2f6c3f2d9a11", "--count", "1")
        done = processes.client(door, "clientC", *job)
        door.kill()
        until(lambda: not nats_of(data), 60, "the end of NATS")
        door.start()
        assert completed(processes.client(door, "clientC", *job), 1)
        assert processes.client(door, "clientC", *job).lines == done.lines
        assert worker.is_alive

        worker.stop()
        door.signal(signal.SIGINT)
        assert door.wait() == 130
        assert nats_of(data) == []
        # It does not fall into a cluster by mistake either.
        peers = "127.0.0.1:20001,127.0.0.1:20002,127.0.0.1:20003"
        assert "without a cluster" in refused(
            processes, "--data-dir", data, "--role", "auto", "--peers", peers, "--advertise", "127.0.0.1:20001"
        )


@pytest.mark.timeout(600)  # the same
def test_commands_and_other_doors_find_a_door_and_its_nats(tmp_path: Path) -> None:
    """FIND-1, FIND-5, FIND-13: from READY to an orderly stop"""
    machine, data = Machine(tmp_path), tmp_path / "data"
    with grid_without_nats(tmp_path, **machine.variables) as processes:
        first = processes.leader("--data-dir", data)
        told = read(data / "server.json")
        assert told is not None
        assert (told.command, told.pid, told.frames, told.data_dir) == ("leader", first.pid, first.address, str(data))

        # It has no NATS of its own, and leaves the file in the directory of the first alone.
        second = processes.leader()
        assert f"using {told.nats_url} of {data} (pid {first.pid})" in second.stderr
        assert len(nats_of(tmp_path)) == 1
        assert read(data / "server.json") == told
        assert len(list(machine.state.iterdir())) == 2
        assert second.stop() == 0
        assert read(data / "server.json") == told

        processes.start("worker", env={"WORK_ROOT": str(tmp_path / "jobs")})
        done = processes.start("client", "clientA").finished()
        assert completed(done)
        assert f"using {first.address} of {data}" in done.stderr

        assert first.stop() == 0
        assert not (data / "server.json").exists()
        assert list(machine.state.iterdir()) == []


@pytest.mark.timeout(900)  # the same
def test_three_doors_started_by_hand_form_a_cluster_that_survives_one_of_them(tmp_path: Path) -> None:
    """FIND-13: the doors serve once two nodes are up, and everything is kept three times once all are"""
    with leaders(tmp_path, EXEC_CLUSTER_SECRET=_SECRET) as three:
        _first_alone(three)
        doors = [three.start(0, waits=False), three.start(1)]
        doors[0].until_ready()
        worker = three.processes.worker(doors[0], "--door", doors[1].address)
        assert completed(three.processes.client(doors[1], "clientA"))
        until(lambda: set(three.copies(0, 1).values()) == {2}, 60, "two copies of everything")

        # Whatever the third door asks for: the others see that its node is up.
        doors.append(three.start(2, env={"EXEC_REPLICAS": "2"}))
        until(lambda: set(three.copies(0, 1, 2).values()) == {3}, 120, "three copies of everything")
        assert completed(three.processes.client(doors[2], "clientB"))
        _ask_in_as_a_stranger(three.ports[0] + 20)

        doors[0].kill()
        assert completed(three.processes.client(doors[2], "clientC", "--count", "6"), 6)
        until(lambda: not nats_of(three.data_dir(0)), 60, "the end of its NATS")
        three.start(0)
        assert completed(three.processes.client(doors[0], "clientD"))

        worker.stop()
        _stop_all(doors)
        assert not any(nats_of(three.data_dir(place)) for place in range(3))
    until(lambda: not standing_in(tmp_path), 60, "everybody's end")


def _first_alone(three: Leaders) -> None:
    """It says what it waits for, accepts nobody, and can be stopped."""
    door = three.start(0, waits=False)
    others = " or ".join(f"127.0.0.1:{port}" for port in three.ports[1:])
    until(lambda: f"waiting for a second node of the cluster: {others}" in door.stderr, 60, "a word to the person")
    assert "READY" not in door.stdout
    [configuration] = three.data_dir(0).glob("nats-*/nats.conf")
    assert configuration.stat().st_mode & 0o777 == 0o600
    assert _SECRET not in door.stdout
    door.signal(signal.SIGINT)
    assert door.wait() == 130
    assert nats_of(three.data_dir(0)) == []


def _ask_in_as_a_stranger(port: int) -> None:
    """A node that does not know the secret is sent away."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as route:
        answers = route.makefile("rb")
        assert answers.readline().startswith(b"INFO ")
        route.sendall(b'CONNECT {"verbose":false,"name":"stranger","cluster":"pyoco"}\r\nPING\r\n')
        heard = b""
        while b"-ERR" not in heard and (line := answers.readline()):
            heard += line
        assert b"Authorization Violation" in heard


def _stop_all(doors: list[GridProcess]) -> None:
    for door in doors:
        os.kill(door.pid, signal.SIGTERM)
    assert [door.wait() for door in doors] == [0, 0, 0]
