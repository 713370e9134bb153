"""The scene of a proof: real NATS, doors, workers and gateway as processes, programs that leave marks, and a judge.

    async with scene(tmp_path, doors=3, workers=4) as grid:
        async with grid.client("clientA", desired=8) as client:
            results = await run_jobs(client, [grid.job("0.5") for _ in range(300)])
        await grid.assert_exact(results)
        assert set(grid.marks.starts().values()) == {1}

Nothing is shared with other tests: the NATS server, its streams and the ports are this scene's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import psutil

from pyoco_server.client.frames.job import Job
from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.frames.messages import SubmitAck
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.run import Run
from pyoco_server.doors.cli.grid.stage import HOST
from pyoco_server.errors import Unavailable
from pyoco_server.grid_client import GridClient, GridMultiClient, JobRequest, JobResult, LinkSettings
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events import jetstream as events_in_jetstream
from pyoco_server.ports.programs import Programs
from pyoco_server.wiring import backend as wiring
from support.grid import story as grid_story
from support.grid.processes import SAMPLES, Grid, GridProcess, grid
from support.grid.story import assert_exact
from support.proofs.nodes import Nodes
from support.proofs.sizes import IS_FULL
from support.servers import free_port, quick_folder
from support.waiting import eventually

__all__ = [
    "GROUP",
    "SHORT_LEASES",
    "Caller",
    "Marks",
    "Scene",
    "leader_of",
    "restart",
    "run_jobs",
    "scene",
    "submit_all",
]

GROUP = "proof"
#: Of the queue: NATS sets it aside, once for each node on this machine.
_QUEUE_BYTES = str(256 * 2**20)
_LETTERS_MAX = 200
#: What was held by the dead is taken over soon: for the quick forms of proofs.
SHORT_LEASES = {
    "EXEC_LEASE_FRESH_SEC": "3",
    "EXEC_RUN_HEARTBEAT_SEC": "1",
    "PYOCO_CONSUMER_ACK_WAIT_SEC": "4",
    "PYOCO_ACK_PROGRESS_INTERVAL_SEC": "1",
}

#: Says on the side when it begins and ends; sleeps between for $1 seconds, and leaves with exit code $2.
_MARKED = """\
echo "begin $JOB_ID $ATTEMPT $EXEC_NAME $CLIENT_ID $(date +%s.%N)" >> "{side}"
sleep "${{1:-0}}"
echo "$JOB_ID" > result.txt
echo "end $JOB_ID $ATTEMPT $EXEC_NAME $CLIENT_ID $(date +%s.%N)" >> "{side}"
echo "done"
exit "${{2:-0}}"
"""
#: As that; but it ends when its scene's gate is opened, and not before.
_GATED = _MARKED.replace('sleep "${{1:-0}}"', 'until [ -e "{gate}" ]; do sleep 0.05; done')


@dataclass(frozen=True)
class Mark:
    """A line that a program has left."""

    word: str
    job_id: str
    attempt: int
    exec_name: str
    client_id: str
    at: float


class Marks:
    """What programs said on the side, in a file that outlives everything. A write of one line is never torn."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def all(self) -> list[Mark]:
        """In the order in which they were written."""
        found = []
        for line in self.file.read_text(encoding="utf-8").splitlines():
            word, job_id, attempt, exec_name, client_id, at = line.split()
            found.append(Mark(word, job_id, int(attempt), exec_name, client_id, float(at)))
        return found

    def starts(self) -> Counter[str]:
        """How often each JobId's program was begun."""
        return Counter(mark.job_id for mark in self.all() if mark.word == "begin")

    def running(self) -> set[str]:
        """JobIds begun and not ended; those that were killed among them."""
        now: set[str] = set()
        for mark in self.all():
            (now.add if mark.word == "begin" else now.discard)(mark.job_id)
        return now

    def most_at_once(self) -> int:
        """How many programs ran at the same time, at most. For scenes where none is killed."""
        now = most = 0
        for mark in sorted(self.all(), key=lambda each: each.at):
            now += 1 if mark.word == "begin" else -1
            most = max(most, now)
        return most


class Caller(GridClient):
    """A client that remembers when each of its jobs was accepted, by the clock that never goes back."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.accepted_at: dict[str, float] = {}

    def accepted(self, job: Job, ack: SubmitAck) -> None:
        self.accepted_at.setdefault(job.job_id, time.monotonic())
        super().accepted(job, ack)

    def longest_gap(self) -> float:
        """Between one acceptance and the next."""
        times = sorted(self.accepted_at.values())
        return max((after - before for before, after in pairwise(times)), default=0.0)


class _Gateway(GridProcess):
    """`uvicorn pyoco_server.http_api:create_app --factory`, as a user starts it."""

    module = "uvicorn"

    def until_ready(self) -> None:
        self.address = f"{HOST}:{self._arguments[-1]}"
        deadline = time.monotonic() + 200
        while True:
            assert self.is_alive, f"{self.name} has ended: {self.stderr[-2000:]}"
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://{self.address}/ready", timeout=20).status_code == 200:
                    return
            assert time.monotonic() < deadline, f"{self.name} was not ready in time"
            time.sleep(0.05)


@dataclass
class Scene:
    folder: Path
    nodes: Nodes
    processes: Grid
    marks: Marks
    doors: list[GridProcess] = field(default_factory=list)
    workers: list[GridProcess] = field(default_factory=list)
    natives: list[GridProcess] = field(default_factory=list)
    gateways: list[GridProcess] = field(default_factory=list)

    # Who is on it.

    @property
    def addresses(self) -> list[str]:
        return [door.address for door in self.doors]

    def open_door(self, *options: object, **more: Any) -> GridProcess:
        role = ("--role", "auto") if len(self.nodes.all) > 1 else ()
        door = self.processes.leader(*role, *options, **more)
        self.doors.append(door)
        return door

    def start_worker(self, *options: object, first: int = 0, **more: Any) -> GridProcess:
        """It knows all doors there are, and begins with that one; its name stays the same over its lives."""
        others = [part for door in self.doors if door is not self.doors[first] for part in ("--door", door.address)]
        own = ("--id", f"worker-{len(self.workers) + 1}")
        worker = self.processes.worker(self.doors[first], *others, *own, *options, **more)
        self.workers.append(worker)
        return worker

    def start_native(self, *options: object, **more: Any) -> GridProcess:
        native = self.processes.nworker("--id", f"native-{len(self.natives) + 1}", *options, **more)
        self.natives.append(native)
        return native

    def open_gateway(self, *, waits: bool = True) -> GridProcess:
        port = free_port()
        name = f"gateway-{len(self.gateways) + 1}"
        data = self.folder / name
        data.mkdir()
        variables = self.processes.variables | {"PYOCO_DATA_DIR": str(data)}
        options = ["pyoco_server.http_api:create_app", "--factory", "--log-level", "warning", "--port", str(port)]
        gateway = _Gateway(name, options, variables, self.folder)
        self.processes.processes.append(gateway)
        self.gateways.append(gateway)
        gateway.start(waits=waits)
        return gateway

    def client(self, client_id: str, desired: int = 4, settings: LinkSettings | None = None) -> Caller:
        """It knows every door."""
        first, *others = self.doors
        return Caller(
            first.host,
            first.port,
            client_id,
            desired=desired,
            doors=[door.address for door in others],
            settings=settings,
        )

    def http(self, place: int = 0, **more: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://{self.gateways[place].address}", **{"timeout": 100, **more})

    @staticmethod
    def job(*args: object, exec_name: str = "marked", job_id: str = "", **more: Any) -> JobRequest:
        return JobRequest(exec_name=exec_name, args=tuple(map(str, args)), job_id=job_id or str(uuid.uuid4()), **more)

    def open_gate(self) -> None:
        """Jobs of the program `gated` end from now on."""
        (self.folder / "gate").touch()

    # What is there.

    @property
    def grid_config(self) -> GridConfig:
        return GridConfig.read(self.processes.variables)

    @contextlib.asynccontextmanager
    async def backend(self) -> AsyncIterator[Backend]:
        """What the processes see, seen from here."""
        async with wiring.open_backend(self.processes.config, "proof", grid=self.grid_config) as backend:
            yield backend

    @contextlib.asynccontextmanager
    async def programs(self) -> AsyncIterator[Programs]:
        async with self.backend() as backend:
            assert backend.programs is not None
            yield backend.programs

    async def queue_leader(self) -> str:
        """The node that leads the queue; fails when none does for a minute."""
        async with self.programs() as programs:
            return await leader_of(programs)

    async def letters(self) -> list[dict[str, Any]]:
        """All dead letters, as the gateway shows them."""
        found: list[dict[str, Any]] = []
        before: dict[str, Any] = {}
        async with self.http() as http:
            while True:
                page = await _told(http, "/dlq", {"limit": _LETTERS_MAX, **before})
                found += page["items"]
                if page.get("next") is None:
                    return found
                before = {"before": page["next"]}

    async def post(self, http: httpx.AsyncClient, ask: JobRequest, client_id: str = "http") -> httpx.Response:
        """`POST /jobs`"""
        fields = [("exec_name", ask.exec_name), ("job_id", ask.job_id), ("client_id", client_id)]
        fields += [("arg", arg) for arg in ask.args]
        return await http.post("/jobs", files=[(name, (None, value)) for name, value in fields])

    def programs_alive(self, worker: GridProcess | None = None) -> list[psutil.Process]:
        """Processes whose working directory is a job directory: of this worker, or of any."""
        below = f"{self.folder}/jobs-" if worker is None else f"{worker.work_root}/"
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):  # psutil lets some of these through
                if process.cwd().startswith(below) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def directories_left(self) -> list[Path]:
        """Job directories, of all workers."""
        return [path for path in self.folder.glob("jobs-*/*") if not path.name.startswith(".")]

    async def assert_exact(
        self, job_ids: Iterable[str], *, letters: Sequence[dict[str, Any]] | None = None, seconds: float = 60.0
    ) -> list[Run]:
        """Section 27, "exact", for these and only these: the queue is empty afterwards. Returns their runs."""
        run_ids = [run_id_of(job_id, GROUP) for job_id in job_ids]
        assert len(run_ids) == len(set(run_ids))
        async with self.backend() as backend:
            with _whole_history():
                runs = await assert_exact(backend, run_ids, letters=letters, seconds=seconds)
            await eventually(partial(_is_empty, backend), seconds)
        return runs


async def _told(http: httpx.AsyncClient, path: str, query: dict[str, Any]) -> dict[str, Any]:
    """As soon as the gateway tells: on a busy machine it may not have heard NATS for a while."""
    answers: list[httpx.Response] = []

    async def is_told() -> bool:
        answers.append(await http.get(path, params=query))
        return answers[-1].status_code != 503

    await eventually(is_told)
    answers[-1].raise_for_status()
    found: dict[str, Any] = answers[-1].json()
    return found


async def _is_empty(backend: Backend) -> bool:
    """Whether no message is left in the queue."""
    assert backend.programs is not None
    try:
        return (await backend.programs.queue.totals()).messages == 0
    except Unavailable:  # they choose a leader
        return False


@contextlib.contextmanager
def _whole_history() -> Iterator[None]:
    """All events are read: the newest 10,000 are enough for people, and not for the stories of all jobs."""
    with (
        patch.object(events_in_jetstream, "_LOOK_BACK", 10**9),
        patch.object(grid_story, "_EVENTS_MAX", 10**9),
    ):
        yield


async def leader_of(programs: Programs, other_than: Collection[str] = ()) -> str:
    """The node that leads the queue; waits while there is none, or only one of `other_than`."""
    found: list[str] = []

    async def is_led() -> bool:
        stream = programs.config.exec_stream
        try:
            replicas = await programs.queue.replicas()
        except Unavailable:  # they choose one
            return False
        found[:] = [each.name for each in replicas if each.is_leader and each.stream == stream]
        return bool(found) and found[0] not in other_than

    await eventually(is_led, 60)
    return found[0]


@contextlib.asynccontextmanager
async def scene(
    folder: Path,
    *,
    nodes: int = 1,
    doors: int = 1,
    workers: int = 0,
    natives: int = 0,
    gateways: int = 0,
    env: Mapping[str, str] | None = None,
    **variables: str,
) -> AsyncIterator[Scene]:
    """All of it up and ready. `env` and `variables` are set for every process, as WORKER_MAX_PAR="2"."""
    exec_dir = folder / "programs"
    exec_dir.mkdir()
    for sample in SAMPLES.glob("*.sh"):
        (exec_dir / sample.name).write_bytes(sample.read_bytes())
    for name, text in (("marked", _MARKED), ("gated", _GATED)):
        (exec_dir / f"{name}.sh").write_text(text.format(side=folder / "marks", gate=folder / "gate"), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        # Quick ones keep what NATS writes in memory; the real ones on a disk.
        below = folder / "nats" if IS_FULL else stack.enter_context(quick_folder())
        servers = Nodes(below, nodes)
        stack.callback(servers.kill)
        try:
            await servers.start()
            config = NatsBackendConfig(nats_url=servers.url, jetstream_replicas=3 if nodes > 1 else 1)
            # A machine that is busy with other tests is no reason to wait for work (GRID-70).
            own = {"EXEC_DIR": str(exec_dir), "EXEC_QUEUE_MAX_BYTES": _QUEUE_BYTES, "WORKER_CPU_WAIT_SEC": "0.1"}
            own["EXEC_REPLICAS"] = "3" if nodes > 1 else "1"
            processes = stack.enter_context(
                grid(servers.url, folder, config, GROUP, **{**own, **(env or {}), **variables})
            )
            on_it = Scene(folder, servers, processes, Marks(folder / "marks"))
            await _furnish(on_it, doors, workers, natives, gateways)
            yield on_it
        except BaseException:
            for node in servers.all:
                print(node.tail())
            raise


async def _furnish(on_it: Scene, doors: int, workers: int, natives: int, gateways: int) -> None:
    """The first process makes what is missing; the others begin at once."""
    if doors:
        on_it.open_door()
    others = [on_it.open_door(waits=False) for _ in range(doors - 1)]
    opened = [on_it.open_gateway(waits=False) for _ in range(gateways)]
    for process in [*others, *opened]:
        await asyncio.to_thread(process.until_ready)
    started = [on_it.start_worker(first=place % doors, waits=False) for place in range(workers)]
    started += [on_it.start_native(waits=False) for _ in range(natives)]
    for process in started:
        await asyncio.to_thread(process.until_ready)


async def restart(process: GridProcess) -> None:
    """Start it again after a kill. The event loop keeps running."""
    process.start(waits=False)
    await asyncio.to_thread(process.until_ready)


async def submit_all(
    client: GridMultiClient, requests: Sequence[JobRequest], over: float = 0.0
) -> dict[str, asyncio.Future[JobResult]]:
    """`over`: the seconds in which they are given away, evenly; 0 is all at once."""
    futures: dict[str, asyncio.Future[JobResult]] = {}
    began = time.monotonic()
    for place, request in enumerate(requests):
        if over:
            await asyncio.sleep(max(0.0, began + over * place / len(requests) - time.monotonic()))
        futures[request.job_id] = await client.submit(request)
    return futures


async def run_jobs(
    client: GridMultiClient, requests: Sequence[JobRequest], seconds: float = 250.0, over: float = 0.0
) -> dict[str, JobResult]:
    """The one result of each JobId, as the caller gets it."""
    async with asyncio.timeout(seconds):
        futures = await submit_all(client, requests, over)
        results = await asyncio.gather(*futures.values())
    assert [result.job_id for result in results] == list(futures)
    return dict(zip(futures, results, strict=True))
