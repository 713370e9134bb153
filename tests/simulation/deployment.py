"""A whole deployment in virtual time: gateways, workers and a keeper, as simulated processes over one store.

The code of each process is the product's own wiring and loops. Only hosts are replaced (`flows/executor.py`): they are
processes of the operating system.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from pyoco_server.config import AwsSettings, NatsBackendConfig, PricedConfig
from pyoco_server.config.grid import GridConfig
from pyoco_server.core.run import Owner
from pyoco_server.core.worker_description import WorkerDescription
from pyoco_server.doors.http.state import State
from pyoco_server.errors import PyocoError
from pyoco_server.loops.advisories import Advisories
from pyoco_server.loops.canceller import Canceller
from pyoco_server.loops.clock.duties import clock_duties
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.flow_lane import FlowLane
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.registry_sweeper import RegistrySweeper
from pyoco_server.loops.rescuer import Rescuer
from pyoco_server.loops.worker import Worker
from pyoco_server.ports.backend import Backend, GatewayBackend
from pyoco_server.ports.index.port import Index
from pyoco_server.ports.nats.memory.server import drop_server, put_server
from pyoco_server.wiring import backend as wiring
from simulation.flows.executor import PretendedExecutor
from simulation.loop import SimLoop
from simulation.network import FaultyWire, WatchedNats
from simulation.process import Process
from simulation.trouble import Trouble

__all__ = ["NO_ANSWER", "Deployment", "Keeping", "NoAnswer", "Service", "Shape", "running"]

T = TypeVar("T")
#: How long a client waits for a gateway.
_CLIENT_SECONDS = 30.0
#: Between the end of a process and its next start, as an init system waits.
_RESTART_SECONDS = 1.0


@dataclass(frozen=True)
class Shape:
    """How large a deployment is."""

    gateways: int = 1
    workers: int = 2
    keepers: int = 1
    slots: int = 2


class NoAnswer:
    """A client cannot know what became of its request."""

    def __repr__(self) -> str:
        return "NO_ANSWER"


NO_ANSWER = NoAnswer()


@dataclass
class Service(Generic[T]):
    """A process that is started again whenever it ends."""

    name: str
    body: Callable[[Service[T]], Coroutine[Any, Any, None]]
    process: Process
    starts: int = 0
    #: What requests to it need; None while it starts.
    inside: T | None = None
    is_wanted: bool = True


@dataclass(frozen=True)
class Keeping:
    """What the duties of a keeper share."""

    backend: Backend
    index: Index
    feeder: IndexFeeder


#: What one kind of runs starts in each worker, given its id, or in each keeper, and stops at its end.
InWorker = Callable[[str, Worker, Backend], AbstractAsyncContextManager[None]]
InKeeper = Callable[[Keeping], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def running(loop: Loop) -> AsyncIterator[None]:
    """Started, and stopped at the end."""
    await loop.start()
    try:
        yield
    finally:
        await loop.stop()


class Deployment:
    def __init__(self, loop: SimLoop, root: Path, shape: Shape, name: str) -> None:
        self.loop, self.shape, self._root = loop, shape, root
        self.wire = FaultyWire(loop, loop.stream("network"))
        self.nats = WatchedNats(self.wire)
        self.url = f"memory://{name}"
        put_server(self.url, self.nats)
        self.config = NatsBackendConfig(
            nats_url=self.url,
            data_dir=str(root),
            consumer_max_deliver=6,
            abandon_after_sec=60.0,
        )
        #: The settings of programs, for workers and keepers; None if no programs are submitted.
        self.grid: GridConfig | None = None
        self.priced = PricedConfig(priced_enabled=False), AwsSettings()
        self.trouble = Trouble(loop)
        self.services: dict[str, Service[Any]] = {}
        #: Processes that execute the work of a worker, by its name; oldest first.
        self._hosts: dict[str, list[Process]] = {}
        #: What kinds of runs add to each worker and keeper.
        self.in_worker: list[InWorker] = []
        self.in_keeper: list[InKeeper] = []
        #: How faults of the stores of one kind of runs are injected, by the kind of fault.
        self.injectors: dict[str, Callable[[Any], None]] = {}
        #: Called with the process and the run whenever work begins.
        self.on_execute: Callable[[str, str], None] = lambda _process, _run_id: None
        #: Called with the run whenever a host was killed that executed it.
        self.on_host_death: Callable[[str], None] = lambda _run_id: None
        self._supervisor = Process("init", loop=loop)

    # Starting and ending.

    async def start(self) -> None:
        for number in range(self.shape.gateways):
            self._add(f"gateway-{number}", self._gateway)
        for number in range(self.shape.workers):
            self._add(f"worker-{number}", self._worker)
        for number in range(self.shape.keepers):
            self._add(f"keeper-{number}", self._keeper)

    def _add(self, name: str, body: Callable[[Service[Any]], Coroutine[Any, Any, None]]) -> None:
        service: Service[Any] = Service(name, body, self._supervisor)
        self.services[name] = service
        self._begin(service)

    def _begin(self, service: Service[Any]) -> None:
        service.starts += 1
        service.inside = None
        service.process = Process(service.name, loop=self.loop)
        service.process.on_death(self._again, service, service.process)
        self.loop.record("start", service=service.name, number=service.starts)
        task = service.process.spawn(self._guarded(service), service.name)
        task.add_done_callback(lambda _: self._again(service, service.process))

    async def _guarded(self, service: Service[Any]) -> None:
        try:
            await service.body(service)
        except PyocoError as error:  # as a command that ends with a message: the init system starts it again
            self.loop.record("exit", service=service.name, error=type(error).__name__)

    def _again(self, service: Service[Any], process: Process) -> None:
        if service.process is not process or not service.is_wanted:
            return
        service.inside = None
        self._supervisor.call_later(_RESTART_SECONDS, self._restart, service, process)

    def _restart(self, service: Service[Any], process: Process) -> None:
        if service.process is process and service.is_wanted:
            process.kill()
            self._begin(service)

    async def stop(self) -> None:
        """End everything at once; what is stored stays for the judge."""
        for service in self.services.values():
            service.is_wanted = False
            service.process.resume()
        await self.loop.cancel_all()
        drop_server(self.url)

    def kill(self, name: str) -> None:
        self.services[name].process.kill()

    def new_host(self) -> Process:
        """A process that executes work for the worker that calls this. It ends with its worker, and can be killed
        alone."""
        worker = self.loop.current()
        host = Process(f"{worker.name}/host", loop=self.loop)
        self._supervisor.run(worker.on_death, host.kill)
        self._hosts[worker.name] = [*self.hosts_of(worker.name), host]
        return host

    def hosts_of(self, worker: str) -> list[Process]:
        return [host for host in self._hosts.get(worker, ()) if host.is_alive]

    # What each process does.

    def _folder(self, service: Service[Any]) -> NatsBackendConfig:
        """A cache of its own for each start: the lock on the previous one is held by the killed process."""
        folder = self._root / f"{service.name}-{service.starts}"
        folder.mkdir()
        return replace(self.config, data_dir=str(folder))

    async def _gateway(self, service: Service[State]) -> None:
        async with wiring.open_gateway_backend(
            self._folder(service), self.priced, self.grid or GridConfig()
        ) as backend:
            state = State(backend)
            await state.start()
            service.inside = state
            await asyncio.Event().wait()

    async def _worker(self, service: Service[Worker]) -> None:
        config = self._folder(service)
        async with wiring.open_backend(config, service.name, priced=self.priced, grid=self.grid) as backend:
            executor = PretendedExecutor(
                self.new_host, lambda run_id: self.on_execute(service.name, run_id), self.on_host_death
            )
            me = Owner(service.name, backend.new_id())
            flows = FlowLane(backend, executor, me, ["default"], self.shape.slots)
            worker = Worker(backend, WorkerDescription(me=me, tags=("default",)), [flows])
            async with AsyncExitStack() as added:
                await worker.start()
                for add in self.in_worker:
                    await added.enter_async_context(add(service.name, worker, backend))
                service.inside = worker
                await asyncio.Event().wait()

    async def _keeper(self, service: Service[list[Loop]]) -> None:
        config = self._folder(service)
        with wiring.open_index(config) as index:
            async with wiring.open_backend(
                config, service.name, priced=self.priced, grid=self.grid, keeps=True
            ) as backend:
                feeder = IndexFeeder(backend.runs, index)
                duties: list[Loop] = [
                    Advisories(backend),
                    Canceller(backend, index, feeder),
                    Rescuer(backend, index, feeder),
                    RegistrySweeper(backend),
                    *clock_duties(backend, index, feeder),
                ]
                async with AsyncExitStack() as started:
                    await feeder.start()
                    started.push_async_callback(feeder.stop)
                    for duty in duties:
                        await started.enter_async_context(running(duty))
                    for add in self.in_keeper:
                        await started.enter_async_context(add(Keeping(backend, index, feeder)))
                    service.inside = duties
                    await asyncio.Event().wait()

    # Requests.

    async def ask(self, work: Callable[[GatewayBackend], Awaitable[T]], dice: Any) -> T | PyocoError | NoAnswer:
        """What a client gets from some gateway: an answer, an error that the gateway rendered, or nothing."""
        ready = [each for name, each in self.services.items() if name.startswith("gateway") and each.inside is not None]
        if not ready:
            return NO_ANSWER
        service = dice.choice(ready)
        answered: asyncio.Future[T | PyocoError] = self.loop.create_future()

        async def serve() -> None:
            try:
                result: T | PyocoError = await work(service.inside.backend)
            except PyocoError as error:
                result = error
            if not answered.done():
                answered.set_result(result)

        if not service.process.is_alive:
            return NO_ANSWER
        service.process.spawn(serve(), "request")
        try:
            async with asyncio.timeout(_CLIENT_SECONDS):
                return await asyncio.shield(answered)
        except TimeoutError:
            return NO_ANSWER
