"""`pyoco-server up` with everything it starts: real processes, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support import warm_processes
from support.grid.peers import ClientPeer
from support.stacks import until
from support.surroundings import variables_without
from support.warm_processes import begun, ran

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "pyoco-server"


class Up:
    """One `pyoco-server up`, seen from outside. `settings`: of its environment."""

    def __init__(self, folder: Path, *options: str, stdout: int | None = None, **settings: str) -> None:
        self.data_dir = folder / "data"
        self._out, self._err = folder / "stdout.txt", folder / "stderr.txt"
        environment = variables_without("PYOCO_")
        environment |= {"PYTHONPATH": str(ROOT / "tests"), **settings}
        with self._out.open("ab") as out, self._err.open("wb") as err:
            self.process = begun(
                [COMMAND, "up", "--port", "0", "--slots", "1", "--data-dir", self.data_dir, *options],
                stdout=out if stdout is None else stdout,
                stderr=err,
                cwd=ROOT,
                env=environment,
            )

    @property
    def said(self) -> str:
        return self._err.read_text()

    @property
    def logged(self) -> list[dict[str, Any]]:
        """Whole lines: the last one may be half written."""
        return [json.loads(line) for line in self._out.read_text().rpartition("\n")[0].splitlines()]

    def until_up(self) -> Up:
        until(self._is_up, what="the banner")
        return self

    def _is_up(self) -> bool:
        assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.said}"
        return "Ctrl-C stops everything." in self.said

    @property
    def address(self) -> str:
        found = re.search(r"API +(\S+)", self.said)
        assert found is not None
        return found[1]

    def family(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def child(self, words: str) -> psutil.Process | None:
        """The direct child whose command line holds these words."""
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):  # it is just ending
                if words in " ".join(child.cmdline()):
                    return child
        return None

    def run(self, flow: str, **params: Any) -> str:
        answer = httpx.post(f"{self.address}/runs", json={"flow_name": flow, "params": params}, timeout=100)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["run_id"])

    def status(self, run_id: str) -> str:
        """Empty: nobody answers, or NATS does not."""
        with contextlib.suppress(httpx.HTTPError):
            return str(httpx.get(f"{self.address}/runs/{run_id}", timeout=100).json().get("status", ""))
        return ""

    def until_status(self, run_id: str, status: str) -> None:
        until(lambda: self.status(run_id) == status, what=f"status {status}")

    def end(self, *signals: signal.Signals) -> int:
        """The exit code. Fails when a single process of the family is left after it."""
        family = self.family()
        for number in signals:
            self.process.send_signal(number)
        code = self.process.wait(120)
        until(lambda: not psutil.wait_procs(family, timeout=0)[1], 30, "the end of all children")
        return int(code)

    def kill(self) -> None:
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            family = self.family()
        self.process.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # its parent may have taken it along by now
                process.kill()
        self.process.wait(60)
        psutil.wait_procs(family, timeout=60)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Everything with the examples, as a user has it, shared by the tests that leave it running."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_processes, "is_cold", True)
        up = Up(tmp_path_factory.mktemp("up"), "--with-examples", "--dashboard-lang", "ja")
    yield up.until_up()
    up.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Start one, without priced runs; whatever still runs after the test is killed."""
    started: list[Up] = []

    def start(*options: str, **more: Any) -> Up:
        started.append(Up(tmp_path, *options, **more, PYOCO_PRICED_ENABLED="0"))
        return started[-1]

    yield start
    for up in started:
        up.kill()


def test_the_first_printed_address_is_the_dashboards(system: Up) -> None:
    """FLOW-244, FLOW-255: in the language of the command line"""
    [word, address] = next(line for line in system.said.splitlines() if "http://" in line).split()
    answer = httpx.get(address, timeout=100)
    assert (word, answer.status_code) == ("open", 200)
    assert '<html lang="ja" ' in answer.text


def test_the_printed_line_leads_from_nothing_to_a_completed_run(system: Up) -> None:
    line = next(line.strip() for line in system.said.splitlines() if "curl -s -X POST" in line)
    answer = subprocess.run(line, shell=True, capture_output=True, check=True, timeout=100)
    run_id = json.loads(answer.stdout)["run_id"]
    system.until_status(run_id, "COMPLETED")
    look = next(line.strip() for line in system.said.splitlines() if "limit=1" in line)

    def is_newest() -> bool:
        newest = json.loads(subprocess.run(look, shell=True, capture_output=True, check=True, timeout=100).stdout)
        return [run["run_id"] for run in newest] == [run_id]

    until(is_newest, what="the newest run")


def test_a_page_whose_name_was_made_to_lead_here_is_not_answered(system: Up) -> None:
    """It listens on this machine alone: nobody has to name the hosts."""
    for path in ("/", "/health", "/runs"):
        answer = httpx.get(f"{system.address}{path}", headers={"Host": "elsewhere.example"}, timeout=100)
        assert (answer.status_code, "PYOCO_HTTP_HOSTS" in answer.text) == (421, True), path
        answer = httpx.get(f"{system.address}{path}", headers={"Host": "localhost:8000"}, timeout=100)
        assert answer.status_code == 200, path


def test_what_is_no_terminal_gets_json_lines_of_every_process(system: Up) -> None:
    services = {"pyoco-server:up", "pyoco-server:http", "pyoco-server:keeper"}
    until(lambda: services <= {line["service"] for line in system.logged}, what="a line of each")
    assert not (system.data_dir / "logs").exists()


def test_a_second_start_on_the_same_data_dir_explains_itself(system: Up) -> None:
    second = ran([COMMAND, "up", "--port", "0", "--data-dir", str(system.data_dir)], timeout=100)
    assert second.returncode == 1
    assert second.stderr.startswith("ERR-PYOCO-0018: another pyoco-server")
    assert f"pid {system.process.pid}" in second.stderr
    assert second.stdout == ""


@pytest.mark.parametrize("words", ["cli.server gateway", "cli.worker", "nats-server"])
def test_a_killed_child_comes_back_and_work_goes_on(system: Up, words: str) -> None:
    old = until(lambda: system.child(words))
    hosts = old.children(recursive=True)
    old.kill()
    new = until(lambda: (found := system.child(words)) != old and found, what="another one")
    run_id = until(lambda: _try(lambda: system.run("hello")), what="a submission")
    system.until_status(run_id, "COMPLETED")
    until(lambda: not psutil.wait_procs(hosts, timeout=0)[1], what="the end of its hosts")
    assert new.is_running()
    ended = [line for line in system.logged if "exited; restarting" in line["message"]]
    assert ended[-1]["reason"] == "killed by SIGKILL"
    assert ended[-1]["level"] == "WARNING"


def _try(call: Callable[[], str]) -> str | None:
    try:
        return call()
    except (AssertionError, httpx.HTTPError):
        return None


def test_a_stop_lets_a_run_finish_and_the_data_survive_it(start: Callable[..., Up], tmp_path: Path) -> None:
    up = start("--flow-resolver", "support.naughty:resolve", "--no-keeper").until_up()
    short = up.run("fine")
    up.until_status(short, "COMPLETED")
    running = up.run("waits_for", path=str(tmp_path / "gate"))
    up.until_status(running, "RUNNING")
    up.process.send_signal(signal.SIGINT)
    until(lambda: "stopping" in up.said)
    (tmp_path / "gate").touch()
    assert up.end() == 130
    again = start("--no-worker", "--no-keeper").until_up()
    assert [again.status(run_id) for run_id in (short, running)] == ["COMPLETED", "COMPLETED"]
    assert again.end(signal.SIGTERM) == 0


def test_a_second_signal_does_not_wait_for_anything(start: Callable[..., Up]) -> None:
    up = start("--with-examples").until_up()
    up.until_status(up.run("slow", n=10_000), "RUNNING")
    up.process.send_signal(signal.SIGINT)
    until(lambda: "stopping" in up.said)
    assert up.end(signal.SIGINT) == 130  # within two minutes, and not after a run that takes an hour


def test_after_kill_9_nobody_is_left_and_the_next_start_works(start: Callable[..., Up]) -> None:
    up = start("--with-examples").until_up()
    up.until_status(up.run("slow", n=1000), "RUNNING")
    family = up.family()
    assert len(family) >= 5  # NATS, gateway, keeper, worker, hosts
    up.process.kill()
    up.process.wait(60)
    again = start("--no-worker", "--no-keeper")  # at once: it waits for the old NATS to let go of its store
    until(lambda: not psutil.wait_procs(family, timeout=0)[1], 30, "the end of all children")
    again.until_up()
    assert again.end(signal.SIGTERM) == 0


def test_a_used_port_is_found_before_anything_starts(start: Callable[..., Up]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--port", "--nats-client-port", "--nats-http-port"):
            up = start(option, port)
            assert up.process.wait(100) == 1
            assert up.said.startswith(f"ERR-PYOCO-0018: port {port} on 127.0.0.1 is already in use")
            assert option in up.said
    assert not (up.data_dir / "nats" / "nats.log").exists()


def test_a_worker_that_cannot_start_stops_everything_and_says_why(start: Callable[..., Up]) -> None:
    up = start("--flow-resolver", "no_such_module_here:resolve", "--no-keeper")
    assert up.process.wait(120) == 1
    assert "ERR-PYOCO-0018: worker-1 did not start" in up.said
    assert "no_such_module_here" in up.said
    assert "Traceback" not in up.said


def test_a_nats_that_cannot_be_reached_is_an_error_with_its_id(start: Callable[..., Up]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        up = start("--nats-url", f"nats://127.0.0.1:{nobody.getsockname()[1]}", "--no-worker", "--no-keeper")
        assert up.process.wait(120) == 1
    assert "ERR-PYOCO-0003: gateway did not start" in up.said
    assert "Traceback" not in up.said


def test_a_terminal_shows_the_banner_and_what_went_wrong(start: Callable[..., Up]) -> None:
    ours, theirs = pty.openpty()
    up = start("--no-worker", "--no-keeper", stdout=theirs)
    os.close(theirs)
    shown = b""
    while b"Ctrl-C stops everything." not in shown:
        shown += os.read(ours, 65536)
    assert b'{"ts"' not in shown
    until(lambda: up.child("cli.server gateway")).kill()
    until(lambda: "warning up: gateway exited; restarting" in up.said, what="the warning")
    assert up.end(signal.SIGTERM) == 0
    os.close(ours)
    for name in ("up", "gateway"):
        lines = (up.data_dir / "logs" / f"{name}.jsonl").read_text().splitlines()
        assert all(json.loads(line) for line in lines)


async def test_a_door_beside_the_gateway_takes_jobs_over_tcp_and_comes_back_when_it_dies(
    start: Callable[..., Up],
) -> None:
    """GRID-40, GRID-118: the worker that `up` starts runs the sample programs."""
    up = start("--frames-port", "0", "--no-keeper").until_up()
    found = re.search(r"TCP +127\.0\.0\.1:(\d+)", up.said)
    assert found is not None

    async def ask() -> None:
        async with await ClientPeer.connect(int(found[1])) as client:
            await client.hello("up")
            await client.accepted(exec_name="calcA", args=("3",))
            assert (await client.result(60)).is_completed

    await ask()
    old = until(lambda: up.child("cli.grid leader"))
    old.kill()
    until(lambda: (child := up.child("cli.grid leader")) != old and child, what="another door")
    await ask()
    until(lambda: "pyoco-grid:door" in {line["service"] for line in up.logged}, what="its log")
    assert up.end(signal.SIGTERM) == 0


def test_a_door_that_everybody_could_reach_is_refused(start: Callable[..., Up]) -> None:
    """GRID-165"""
    up = start("--frames-port", "0", "--host", "0.0.0.0")
    assert up.process.wait(120) == 3
    assert "ERR-PYOCO-0047" in up.said
