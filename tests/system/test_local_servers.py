"""Commands without an address, beside real servers: one, two, and one that was killed."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pyoco_server.discovery.server_file import LocalServer, read
from support.discovery import Machine
from support.stacks import until
from support.warm_processes import begun, ran

_BIN = Path(sys.executable).parent


class User:
    """Somebody with a shell in several directories."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.environment = {**machine.variables, "PYOCO_PRICED_ENABLED": "0", "WORKER_CPU_WAIT_SEC": "0.2"}
        self._started: list[subprocess.Popen[bytes]] = []

    def types(self, folder: str, *words: str) -> tuple[int, str, list[str]]:
        """Exit code, stdout and the lines of stderr."""
        command = [str(_BIN / words[0]), *words[1:]]
        done = ran(command, timeout=200, cwd=self.machine.place(folder), env=self.environment)
        return done.returncode, done.stdout, done.stderr.splitlines()

    def starts(self, folder: str, *words: str) -> subprocess.Popen[bytes]:
        """A command that goes on. What it says is in `words[0]`.out and .err."""
        place = self.machine.place(folder)
        with (place / f"{words[0]}.out").open("wb") as out, (place / f"{words[0]}.err").open("wb") as err:
            command = [str(_BIN / words[0]), *words[1:]]
            self._started.append(begun(command, stdout=out, stderr=err, cwd=place, env=self.environment))
        return self._started[-1]

    def starts_server(self, folder: str, *options: str) -> tuple[subprocess.Popen[bytes], LocalServer]:
        """`pyoco-server up`; returns when it can be found."""
        process = self.starts(folder, "pyoco-server", "up", "--port", "0", "--no-worker", *options)
        path = self.machine.place(folder) / ".pyoco" / "server.json"

        def found() -> LocalServer | None:
            assert process.poll() is None, self.said(folder, "pyoco-server")
            server = read(path)
            return server if server is not None and server.pid == process.pid else None

        return process, until(found, what="the discovery file")

    def said(self, folder: str, command: str) -> str:
        return "".join((self.machine.place(folder) / f"{command}.{end}").read_text() for end in ("out", "err"))

    def files(self) -> list[str]:
        return sorted(path.name for path in self.machine.state.iterdir())

    def leave(self) -> None:
        for process in self._started:
            if process.poll() is None:
                family = psutil.Process(process.pid).children(recursive=True)
                process.kill()
                for child in family:
                    with contextlib.suppress(psutil.NoSuchProcess):  # it dies with its parent
                        child.kill()
                psutil.wait_procs(family, timeout=60)
            process.wait(60)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = User(Machine(tmp_path))
    yield user
    user.leave()


def line(server: LocalServer, address: str) -> str:
    return f"using {address} of {server.data_dir} (pid {server.pid})"


def test_commands_find_the_only_server_from_any_directory(user: User) -> None:
    """FIND-1, FIND-4, FIND-5, FIND-7"""
    _, server = user.starts_server("project", "--frames-port", "0")
    assert (server.command, server.auth_mode, server.pepper_fingerprint) == ("up", "none", "none")
    assert server.frames is not None
    for folder in ("project", "elsewhere"):
        over_http, over_nats = line(server, server.http[0]), line(server, server.nats[0])
        assert user.types(folder, "pyoco-client", "health") == (0, '{\n  "status": "ok"\n}\n', [over_http])
        assert user.types(folder, "pyoco-server-admin", "api-key", "list") == (0, "[]\n", [over_nats])
        code, out, said = user.types(folder, "pyoco-grid", "state", "--json")
        assert (code, said) == (0, [over_nats])
        assert [each["addr"] for each in json.loads(out)["groups"]["default"]["doors"]] == [server.frames]
        _, out, said = user.types(folder, "pyoco-server", "doctor", "--json")
        assert said == [over_nats]
        looked_at = json.loads(out)
        assert looked_at["nats_url"] == server.nats[0]
        assert any(server.http[0] in str(finding) for finding in looked_at["findings"])


def test_a_worker_and_a_program_worker_need_no_address(user: User) -> None:
    """FIND-5"""
    _, server = user.starts_server("project", "--frames-port", "0")
    assert server.frames is not None
    worker = user.starts("elsewhere", "pyoco-worker", "--worker-id", "w1")
    until(lambda: '"w1"' in user.types("elsewhere", "pyoco-client", "workers")[1], what="the worker in the registry")
    assert line(server, server.nats[0]) in user.said("elsewhere", "pyoco-worker")
    worker.send_signal(signal.SIGINT)
    assert worker.wait(60) == 130
    programs = user.machine.place("programs")
    (programs / "shout").write_text("#!/bin/sh\necho shouted\n")
    (programs / "shout").chmod(0o755)
    user.starts("elsewhere", "pyoco-grid", "worker", "--exec-dir", str(programs), "--work-root", str(programs / "jobs"))
    until(lambda: "READY worker" in user.said("elsewhere", "pyoco-grid"), what="the worker over TCP")
    code, out, said = user.types("project", "pyoco-grid", "client", "clientA", "--exec", "shout", "--count", "1")
    assert code == 0, said
    assert line(server, server.frames) in said
    assert json.loads(out)["Status"] == "COMPLETED"


def test_of_two_servers_the_one_here_or_the_one_that_is_left(user: User) -> None:
    """FIND-4, FIND-6, FIND-8: after a kill -9 its files are stale, and the next server removes the one of the user."""
    killed, first = user.starts_server("one")
    stopped, second = user.starts_server("two")
    for folder, server in (("one", first), ("two", second)):
        assert user.types(folder, "pyoco-client", "health")[2] == [line(server, server.http[0])]
    code, out, said = user.types("elsewhere", "pyoco-client", "health")
    assert (code, out) == (1, "")
    assert said[0] == "ERR-PYOCO-0051: 2 local servers are running; choose one with --server:"
    assert sorted(said[1:]) == sorted(
        f"  --server {each.http[0]} of {each.data_dir} (pid {each.pid})" for each in (first, second)
    )
    chosen = re.findall(r"--server (\S+)", said[1])
    assert user.types("elsewhere", "pyoco-client", "--server", *chosen, "health")[0] == 0

    family = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    killed.wait(60)
    psutil.wait_procs(family, timeout=60)
    assert len(user.files()) == 2
    for folder in ("one", "elsewhere"):
        assert user.types(folder, "pyoco-client", "health")[2] == [line(second, second.http[0])]

    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(60) == 130
    assert user.files() == [f"{first.id}.json"]
    assert not Path(second.data_dir, "server.json").exists()
    _, third = user.starts_server("two")
    assert user.files() == [f"{third.id}.json"]
