"""A cluster as `pyoco-server cluster demo` starts it, and clients that use it while things are done to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from pyoco_server.http_client import AsyncPyocoHttpClient, RunSnapshot
from support.servers import quick_folder
from support.stacks import HASTY_PROGRAMS, until
from support.surroundings import variables_without
from support.waiting import eventually
from support.warm_processes import WarmProcess, begun, started

__all__ = ["DemoCluster", "Load", "demo_command", "demo_environment", "family_of", "loaded", "shared_cluster"]

T = TypeVar("T")
_ROOT = Path(__file__).parents[2]
#: A busy machine needs minutes for eight processes, and `until` has the patience.
_START_SECONDS = 60.0
_END_SECONDS = 60.0


def demo_command(folder: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "pyoco_server.doors.cli.server", "cluster", "demo", "--port", "0"]
    return [*command, "--data-dir", str(folder), *options]


def demo_environment(**more: str) -> dict[str, str]:
    clean = variables_without("PYOCO_", "EXEC_")
    quick = {"PYOCO_PRICED_ENABLED": "0", "PYOCO_LOAD_DOTENV": "false", "EXEC_QUEUE_MAX_BYTES": str(64 * 2**20)}
    return {**clean, **quick, **HASTY_PROGRAMS, "PYTHONPATH": str(_ROOT / "tests"), **more}


def family_of(pid: int) -> list[psutil.Process]:
    """It and all that it has started."""
    own = psutil.Process(pid)
    return [own, *own.children(recursive=True)]


class DemoCluster:
    """Three NATS nodes, two gateways, two workers, a keeper. Flows leave traces."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder, self.data_dir = folder, folder / "data"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> DemoCluster:
        """Returns when it says that it is up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._output.open("wb") as output, (self.folder / "errors.txt").open("ab") as errors:
            self._process = begun(
                demo_command(self.data_dir, "--flow-resolver", "support.chaos_flows:resolve"),
                stdout=output,
                stderr=errors,
                cwd=self.folder,
                env=demo_environment(**self._settings, PYOCO_DISCOVERY="1", XDG_STATE_HOME=str(self.state)),
            )
        until(self._is_up, _START_SECONDS, "the banner")
        return self

    @property
    def state(self) -> Path:
        """The state directory, with the discovery file of this demo alone."""
        return self.folder / "state"

    @property
    def _output(self) -> Path:
        return self.folder / "output.txt"

    @property
    def said(self) -> str:
        return self._output.read_text() + (self.folder / "errors.txt").read_text()

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.said
        return "Ctrl-C stops everything." in self._output.read_text()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def addresses(self) -> list[str]:
        return re.findall(r"gateway-\d +pid \d+ +(http://\S+)", self._output.read_text())

    @property
    def nats_url(self) -> str:
        found = re.search(r"NATS +(nats://\S+)", self._output.read_text())
        assert found is not None
        return found[1]

    @property
    def nodes(self) -> list[str]:
        return ["nats-1", "nats-2", "nats-3"]

    def pid(self, name: str) -> int:
        """Of this part, as it was told last."""
        return int(re.findall(rf"^ *{name} +(?:was restarted, )?pid (\d+)", self._output.read_text(), re.MULTILINE)[-1])

    def health_url(self, node: str) -> str:
        found = re.search(rf"{node} +pid \d+ +\S+ +(\S+/healthz)", self._output.read_text())
        assert found is not None
        return found[1]

    async def is_healthy(self, node: str) -> bool:
        """Whether every stream and consumer that it keeps is up to date."""
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient(timeout=20) as client:
                return (await client.get(self.health_url(node))).status_code == 200
        return False

    async def restarted(self, name: str, how: signal.Signals = signal.SIGTERM) -> float:
        """End it; returns when it is back and, if it is a node, healthy: after how many seconds."""
        began, old = time.monotonic(), self.pid(name)
        os.kill(old, how)
        await eventually(lambda: self.pid(name) != old, _END_SECONDS)
        if name in self.nodes:
            await eventually(lambda: self.is_healthy(name), _END_SECONDS)
        return time.monotonic() - began

    async def admin(self, *words: str, **settings: str) -> tuple[int, str]:
        """`pyoco-server-admin` with this NATS: exit code, and all that it said."""
        process = await self.start_admin(*words, **settings)
        async with asyncio.timeout(180):
            said, _ = await process.communicate()
        return process.returncode or 0, (said or b"").decode()

    async def start_admin(self, *words: str, **settings: str) -> WarmProcess:
        command = ["-m", "pyoco_server.doors.cli.admin", "--nats-url", self.nats_url, *words]
        environment = demo_environment(**settings)
        return await started(command, env=environment, cwd=self.folder, stderr=asyncio.subprocess.STDOUT)

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """Stop it in an orderly way. Returns its exit code once no process of it is left."""
        family = family_of(self.process.pid)
        self.process.send_signal(how)
        code = self.process.wait(2 * _END_SECONDS)
        _, alive = psutil.wait_procs(family[1:], timeout=60)
        assert not alive, alive
        return code

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            family = family_of(self._process.pid)
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait(60)
            psutil.wait_procs(family[1:], timeout=60)


@contextlib.contextmanager
def shared_cluster() -> Iterator[DemoCluster]:
    with quick_folder() as folder:
        cluster = DemoCluster(folder)
        try:
            yield cluster.start()
        finally:
            cluster.kill()


@dataclass
class Load:
    """Clients that submit and read all the time, each through one gateway, with no more patience than the client has by
    itself. Every request that fails is noted."""

    note: Path
    accepted: dict[str, str] = field(default_factory=dict)
    programs: list[str] = field(default_factory=list)
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, address: str, name: int) -> None:
        async with AsyncPyocoHttpClient(address) as client:
            for count in itertools.count():
                if self._stopping.is_set():
                    return
                await self._step(client, f"{self.note.parent.name}-{name}-{count}", is_program=count % 5 == 0)
                await asyncio.sleep(0.1)

    async def _step(self, client: AsyncPyocoHttpClient, token: str, *, is_program: bool) -> None:
        params = {"path": str(self.note), "token": token}
        run = await self._ask("submit", client.submit_run("trace", params, idempotency_key=token))
        if run is not None:
            self.accepted[token] = run["run_id"]
            await self._ask("read", client.get_run(run["run_id"]))
        await self._ask("list", client.list_runs(limit=5))
        if is_program:
            job = await self._ask("program", client.submit_job("calcA", ["one"]))
            if job is not None:
                self.programs.append(job["run_id"])

    async def _ask(self, what: str, asking: Awaitable[T]) -> T | None:
        began = time.monotonic()
        try:
            answer = await asking
        except httpx.HTTPError as error:
            after = time.monotonic() - began
            said = error.response.text if isinstance(error, httpx.HTTPStatusError) else ""
            self.failed.append(f"{what} after {after:.1f} s: {error!r} {said}"[:400])
            return None
        self.answered += 1
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
        return answer

    async def more(self, count: int, seconds: float = 60.0) -> None:
        """Returns when so many more runs were accepted."""
        enough = len(self.accepted) + count
        await eventually(lambda: len(self.accepted) >= enough, seconds)

    def stop(self) -> None:
        self._stopping.set()

    async def check(self, addresses: Sequence[str], *, may_begin_again: bool = False) -> None:
        """No request failed; every run was completed; none was executed to its end twice, or made twice by its key."""
        assert self.failed == []
        async with AsyncPyocoHttpClient(addresses[0]) as one, AsyncPyocoHttpClient(addresses[1]) as other:
            ends = await _all_ends(one, [*self.accepted.values(), *self.programs])
            assert Counter(end["status"] for end in ends) == {"COMPLETED": len(ends)}
            for token, run_id in list(self.accepted.items())[::5]:
                params = {"path": str(self.note), "token": token}
                again: dict[str, Any] = dict(await other.submit_run("trace", params, idempotency_key=token))
                assert again["run_id"] == run_id
        assert len(set(self.accepted.values())) == len(self.accepted)
        words = Counter(tuple(line.split()[:2]) for line in self.note.read_text().splitlines())
        assert {token for _, token in words} == set(self.accepted)
        if not may_begin_again:
            assert set(words.values()) == {1}, words.most_common(5)


async def _all_ends(client: AsyncPyocoHttpClient, run_ids: Sequence[str]) -> list[RunSnapshot]:
    few = asyncio.Semaphore(10)

    async def end_of(run_id: str) -> RunSnapshot:
        async with few:
            return await client.wait_run(run_id, 3 * _END_SECONDS)

    return await asyncio.gather(*map(end_of, run_ids))


@contextlib.asynccontextmanager
async def loaded(cluster: DemoCluster, note: Path) -> AsyncIterator[Load]:
    """Two clients, one for each gateway, until the block ends."""
    load = Load(note)
    tasks = [asyncio.create_task(load.run(address, name)) for name, address in enumerate(cluster.addresses)]
    try:
        await load.more(4)
        yield load
        load.stop()
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
