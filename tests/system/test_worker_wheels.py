"""Real `pyoco-worker --wheel-sync` processes, and wheels that come and go over HTTP while they work."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli.claims import claim_data_dir
from pyoco_server.doors.cli.plan import ProcessPlan, UpOptions
from pyoco_server.errors import CATALOGUE
from pyoco_server.ports.nats.link import Link
from support.backends import dead_letters
from support.gateways import Gateway, environment, fresh_gateway, submit, submit_yaml
from support.waiting import eventually
from support.warm_processes import begun
from support.wheel_doors import register

TASKS = """
import time
from pathlib import Path

VERSION = {version!r}

def tell():
    return VERSION

def wait_for(path, begun):
    Path(begun).touch()
    while not Path(path).exists():
        time.sleep(0.01)
    from my_tasks.late import VERSION as late  # of the same version, however late it is asked for
    return [VERSION, late]

def register(registry):
    registry.register_callable(tell, name="my-tasks/tell")
"""
FLOWS = """
from pyoco import Flow, task

@task
def tell():
    return "by name"

def resolve(name):
    return {"named": Flow() >> tell}[name]
"""
START = """
import functools, sys
from pyoco_server.config import NatsBackendConfig as C
C.from_env = functools.partial(C.from_env, work_stream={stream!r})  # that name has no variable (FLOW-388)
sys.argv[0] = "pyoco-worker"
from pyoco_server.doors.cli.worker import main
main()
"""


class WorkerProcess:
    """One `pyoco-worker --wheel-sync` with a directory of its own, seen from outside."""

    def __init__(self, config: NatsBackendConfig, folder: Path, *options: str, **variables: str) -> None:
        self._out, self.wheels = folder / "worker.out", folder / "wheels"
        command = [sys.executable, "-c", START.format(stream=config.work_stream), "--wheel-sync", "--slots", "1"]
        command += ["--wheel-sync-dir", str(self.wheels), "--wheel-sync-interval-sec", "0.2", *options]
        variables = {**environment(config), "PYOCO_LOAD_DOTENV": "false", **variables}
        with self._out.open("wb") as out:
            self.process = begun(command, stdout=out, stderr=out, env=variables, cwd=folder)

    @property
    def said(self) -> str:
        return self._out.read_text()

    def logged(self, words: str) -> list[dict[str, Any]]:
        whole = self.said.rpartition("\n")[0]  # the last line may be half written
        lines = (json.loads(line) for line in whole.splitlines() if line.startswith("{"))
        return [line for line in lines if words in line["message"]]

    async def ready(self) -> WorkerProcess:
        def works() -> bool:
            assert self.process.poll() is None, self.said
            return bool(self.logged("worker started"))

        await eventually(works, 30.0)
        return self

    def pips(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "pip" in child.cmdline():
                    found.append(child)
        return found

    async def ended(self, seconds: float) -> int:
        await eventually(lambda: self.process.poll() is not None, seconds)
        return int(self.process.returncode)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    settings = {"worker_heartbeat_interval_sec": 0.2, "run_heartbeat_interval_sec": 0.2}
    async with fresh_gateway(link, nats_url, tmp_path / "gateway", **settings) as gateway:
        yield gateway


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "worker"
    folder.mkdir()
    return folder


@contextlib.asynccontextmanager
async def worker_of(gateway: Gateway, folder: Path, *options: str, **variables: str) -> AsyncIterator[WorkerProcess]:
    worker = WorkerProcess(gateway.config, folder, *options, **variables)
    try:
        yield await worker.ready()
    finally:
        worker.kill()


async def tasks(gateway: Gateway, version: str) -> None:
    modules = {
        "my_tasks/__init__.py": TASKS.format(version=version),
        "my_tasks/late.py": f"VERSION = {version!r}\n",
    }
    plug_in = {"pyoco.tasks": {"my-tasks": "my_tasks:register"}}
    await register(gateway, "my-tasks", version, modules=modules, entry_points=plug_in)


async def report(gateway: Gateway) -> dict[str, Any]:
    """What the worker says of its wheels. The gateway hears of it a moment after it was said, or after a silence of
    NATS, during which it shows nobody."""
    seen: list[dict[str, Any]] = []

    async def is_shown() -> bool:
        answer = await gateway.client.get("/workers", params={"scope": "all"})
        seen[:] = answer.json() if answer.status_code == 200 else []
        return bool(seen)

    await eventually(is_shown)
    [worker] = seen
    found: dict[str, Any] = worker["wheel_sync"] or {}
    return found


async def installed(gateway: Gateway, *names: str) -> None:
    async def are() -> bool:
        return [name.split("-py3")[0] for name in (await report(gateway)).get("installed", ())] == list(names)

    await eventually(are, 30.0)


async def started(gateway: Gateway, text: str) -> str:
    answer = await submit_yaml(gateway, text)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["run_id"])


async def end_of(gateway: Gateway, run_id: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    async def is_over() -> bool:
        seen.update((await gateway.client.get(f"/runs/{run_id}", params={"include": "records"})).json())
        return seen.get("status") in {"COMPLETED", "FAILED", "CANCELLED"}

    await eventually(is_over, 20.0)
    return seen


def calling(name: str, **inputs: Any) -> str:
    return f"tasks: {{it: {{callable: 'my_tasks:{name}', inputs: {json.dumps(inputs)}}}}}\nflow: {{graph: it}}"


USING = "tasks: {it: {use: my-tasks/tell}}\nflow: {graph: it}"


async def output_of(gateway: Gateway, text: str) -> Any:
    run = await end_of(gateway, await started(gateway, text))
    assert run["status"] == "COMPLETED", run["error"]
    return run["task_records"]["it"]["output"]


async def test_the_next_run_has_the_newest_wheel_and_the_worker_is_not_restarted(
    gateway: Gateway, link: Link, folder: Path, tmp_path: Path
) -> None:
    """FLOW-228 to FLOW-230, FLOW-240, FLOW-241, FLOW-243, FLOW-562: upload, newer version, deletion, all over HTTP."""
    async with worker_of(gateway, folder, "--slots", "2") as worker:
        assert (await report(gateway)).keys() == {
            "enabled", "last_sync_at", "status", "installed", "installing", "skipped", "removed", "failed"
        }  # fmt: skip
        await tasks(gateway, "1.0")
        await installed(gateway, "my_tasks-1.0")
        assert await output_of(gateway, calling("tell")) == "1.0"
        assert await output_of(gateway, USING) == "1.0"
        go, begun = tmp_path / "go", tmp_path / "begun"
        long = await started(gateway, calling("wait_for", path=str(go), begun=str(begun)))
        await eventually(begun.exists)  # or it would begin with the newer one
        await tasks(gateway, "2.0")
        await installed(gateway, "my_tasks-2.0")
        assert [await output_of(gateway, text) for text in (calling("tell"), USING)] == ["2.0", "2.0"]
        go.touch()
        run = await end_of(gateway, long)
        assert run["task_records"]["it"]["output"] == ["1.0", "1.0"]
        await eventually(lambda: [path.name[:12] for path in (worker.wheels / "envs").iterdir()] == ["my-tasks-2.0"])

        for version in ("2.0", "1.0"):
            answer = await gateway.client.delete(f"/wheels/my_tasks-{version}-py3-none-any.whl")
            assert answer.status_code == 200
        await installed(gateway)
        run = await end_of(gateway, await started(gateway, calling("tell")))
        assert run["status"] == "FAILED"
        assert run["error"] == (
            "ERR-PYOCO-0031: task 'it' names 'my_tasks:tell', which this worker does not offer; "
            "allow it with PYOCO_CALLABLE_ALLOW=my_tasks"
        )
        run = await end_of(gateway, await started(gateway, USING))
        assert "uses unknown task 'my-tasks/tell'" in run["error"]
        letters: list[dict[str, Any]] = []

        async def are_told() -> bool:
            """Of each run, a moment after its end."""
            letters[:] = [letter["body"] for letter in await dead_letters(link, gateway.config)]
            return len(letters) >= 2

        await eventually(are_told)
        assert [letter["reason"] for letter in letters] == ["flow_not_found"] * 2
        assert letters[0]["error"].startswith("ERR-PYOCO-0031")
        [line] = [one for one in worker.logged(CATALOGUE[31].en) if one.get("err_id")]
        assert line["err_id"] == "ERR-PYOCO-0031"
        assert worker.process.poll() is None
        await report(gateway)  # the gateway hears NATS
        [record] = (await gateway.client.get("/workers")).json()
        assert record["host_restarts"] == 0


async def test_a_broken_wheel_costs_itself_and_nobody_else(gateway: Gateway, folder: Path) -> None:
    """FLOW-242: one that needs what nobody has, one that would take every host with it, and one with a
    plug-in that fails."""
    async with worker_of(gateway, folder) as worker:
        await register(gateway, "lonely", "1.0", requires=["no-such-package>=7"])
        deadly = {"deadly.py": "import os\nos._exit(7)\n"}
        await register(gateway, "deadly", "1.0", modules=deadly, entry_points={"pyoco.tasks": {"d": "deadly:register"}})
        clumsy = {"clumsy.py": "raise RuntimeError('on purpose')\n"}
        await register(gateway, "clumsy", "1.0", modules=clumsy, entry_points={"pyoco.tasks": {"c": "clumsy:register"}})
        await tasks(gateway, "1.0")
        await installed(gateway, "my_tasks-1.0")
        assert [await output_of(gateway, text) for text in (calling("tell"), USING)] == ["1.0", "1.0"]

        async def is_told() -> bool:
            failed = {each["wheel_name"].split("-")[0]: each["error"] for each in (await report(gateway))["failed"]}
            return (
                failed.keys() == {"lonely", "deadly", "clumsy"}
                and "no-such-package" in failed["lonely"]
                and "exit status 7" in failed["deadly"]
                and "Plug-in 'c' failed to load: RuntimeError: on purpose" in failed["clumsy"]
            )

        await eventually(is_told)
        assert (await report(gateway))["status"] == "error"
        assert any("wheel sync failed" in line["message"] for line in worker.logged("")), worker.said


async def test_flows_by_name_may_come_in_a_wheel(gateway: Gateway, folder: Path) -> None:
    """FLOW-229: the first look is before the first host starts."""
    await register(gateway, "my-flows", "1.0", modules={"my_flows.py": FLOWS})
    async with worker_of(gateway, folder, "--flow-resolver", "my_flows:resolve") as worker:
        run = await end_of(gateway, await submit(gateway, flow_name="named"))
        assert run["task_records"]["tell"]["output"] == "by name"
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.ended(30) == 0


class Silence:
    """A package index that takes connections and says nothing."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}/simple"
        self.asked = threading.Event()
        self._taken: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._taken.append(self._socket.accept()[0])
                self.asked.set()

    def close(self) -> None:
        for each in (self._socket, *self._taken):
            each.close()


@pytest.fixture
def silence() -> Iterator[Silence]:
    silence = Silence()
    yield silence
    silence.close()


@pytest.mark.parametrize("when", ["before it works", "while it works"])
async def test_a_stop_does_not_wait_for_an_installation(
    gateway: Gateway, folder: Path, silence: Silence, when: str
) -> None:
    """FLOW-469: a pip under way is ended with everything else; a slow one does not keep others from running."""
    if when == "before it works":
        await register(gateway, "slow", "1.0", requires=["no-such-package"])
    worker = WorkerProcess(gateway.config, folder, PYOCO_WHEEL_INDEX=silence.address)
    try:
        if when == "while it works":
            await worker.ready()
            await register(gateway, "slow", "1.0", requires=["no-such-package"])
        await eventually(silence.asked.is_set, 30.0)
        pips = worker.pips()
        assert pips
        worker.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert await worker.ended(30) == 130
        assert time.monotonic() - began < 60  # pip alone waits for longer: six times fifteen seconds
        await eventually(lambda: not any(pip.is_running() and pip.status() != "zombie" for pip in pips))
    finally:
        worker.kill()


def test_a_worker_that_cannot_keep_wheels_says_so(gateway: Gateway, folder: Path) -> None:
    """A directory that is none: exit 1 with the name of the setting, rather than a worker without its wheels."""
    (folder / "wheels").write_text("a file")
    worker = WorkerProcess(gateway.config, folder)
    try:
        assert worker.process.wait(100) == 1
        assert "PYOCO_WHEEL_SYNC_DIR" in worker.said
    finally:
        worker.kill()


class TestUp:
    def commands(self, tmp_path: Path, config: NatsBackendConfig, **more: Any) -> list[list[str]]:
        options: dict[str, Any] = dict.fromkeys(UpOptions.__dataclass_fields__) | {
            "host": "127.0.0.1", "port": 0, "workers": 2, "keeper": False, "with_nats_bootstrap": False,
            "with_examples": False, "wheel_sync": False,
        }  # fmt: skip
        data_dir = claim_data_dir(tmp_path)
        try:
            with socket.socket() as http:
                plan = ProcessPlan(UpOptions(**{**options, **more}), config)
                parts = plan.parts(data_dir, http, None, lambda: None)  # type: ignore[arg-type,return-value]
                return [[str(word) for word in part.command()] for part in parts if part.name.startswith("worker")]
        finally:
            data_dir.release()

    def test_gives_each_worker_a_directory_of_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """--wheel-sync, FLOW-237"""
        monkeypatch.delenv("PYOCO_WHEEL_SYNC_DIR", raising=False)
        monkeypatch.delenv("PYOCO_NATS_URL", raising=False)
        commands = self.commands(tmp_path, NatsBackendConfig(wheel_sync_enabled=True))
        places = [command[command.index("--wheel-sync-dir") + 1] for command in commands]
        assert places == [str(tmp_path / "wheels" / f"worker-{n}") for n in (1, 2)]
        assert all("--wheel-sync" in command for command in commands)
        monkeypatch.setenv("PYOCO_WHEEL_SYNC_DIR", str(tmp_path / "elsewhere"))
        commands = self.commands(tmp_path, NatsBackendConfig(wheel_sync_enabled=True))
        assert not any("--wheel-sync-dir" in command for command in commands)

    def test_starts_workers_without_wheels_unless_told(self, tmp_path: Path) -> None:
        """FLOW-228"""
        assert not any("wheel" in word for command in self.commands(tmp_path, NatsBackendConfig()) for word in command)
