"""A gateway and a worker beside the test, in a thread of their own: for commands, which wait for their answers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyoco import Flow, task

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.http_api import create_app
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.run_logs.port import RunLogs
from pyoco_server.worker import PyocoNatsWorker
from support.gateways import listening
from support.printing import Printer
from support.servers import config_for, forget

__all__ = ["Site", "open_site"]

T = TypeVar("T")
_HELD_SECONDS_MAX = 200.0


@dataclass
class Site:
    """Flows that its worker knows: `hello`, `broken`, and `held`, whose second task waits for `let_go`."""

    config: NatsBackendConfig
    url: str = ""
    let_go: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    #: Of the gateway's thread.
    loop: asyncio.AbstractEventLoop | None = None
    logs: RunLogs | None = None
    #: The gateway's, to be used in its loop.
    backend: GatewayBackend | None = None
    #: Held by the worker while it takes and executes a run, and by tests that pause it.
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _rests: bool = False

    def rest(self) -> None:
        """Returns once no run is executed, and none is until `wake`.

        The engine puts its own stream in the place of `sys.stdout` while it runs, for all threads, and puts back what
        it found. Between two tests that would be a stream which pytest has closed meanwhile.
        """
        if not self._rests:
            assert self._turn.acquire(timeout=_HELD_SECONDS_MAX)
            self._rests = True

    def wake(self) -> None:
        if self._rests:
            self._rests = False
            self._turn.release()

    async def turn(self, worker: PyocoNatsWorker) -> None:
        """The worker's next run, unless it rests."""
        if not self._turn.acquire(blocking=False):
            await asyncio.sleep(0.005)
            return
        try:
            await worker.run_once(0.05)
        finally:
            self._turn.release()
        await asyncio.sleep(0.001)  # a test that pauses it gets the lock

    def client(self) -> PyocoHttpClient:
        return PyocoHttpClient(self.url)

    def submitted(self, flow_name: str, **more: Any) -> str:
        with self.client() as client:
            return client.submit_run(flow_name, **more)["run_id"]

    def ended(self, flow_name: str, **more: Any) -> str:
        """The id of a run that is over."""
        run_id = self.submitted(flow_name, **more)
        with self.client() as client:
            client.wait_run(run_id, 100)
        return run_id

    def status(self, run_id: str) -> str:
        with self.client() as client:
            return client.get_run(run_id)["status"]

    def stores(self, do: Callable[[GatewayBackend], Coroutine[Any, Any, T]]) -> T:
        """Do something to what is stored, in the gateway's loop, and return what comes of it."""
        assert self.loop is not None
        assert self.backend is not None
        return asyncio.run_coroutine_threadsafe(do(self.backend), self.loop).result(100)

    def prints(self, run_id: str, *texts: str, is_over: bool = True) -> None:
        """Store lines as the worker does; the first task of every flow has printed them."""
        assert self.loop is not None
        printer = Printer(self.logs, run_id)
        printer.print(*texts, task="greet")
        asyncio.run_coroutine_threadsafe(printer.store(is_over=is_over), self.loop).result(100)

    def announce(self, record: WorkerRecord) -> None:
        """Write the record of another worker."""
        assert self.loop is not None
        assert self.backend is not None
        asyncio.run_coroutine_threadsafe(self.backend.registry.announce(record), self.loop).result(100)

    @contextlib.contextmanager
    def held(self) -> Iterator[str]:
        """A run that is in the middle of its work until the block ends."""
        self.let_go.clear()
        self.begun.clear()
        try:
            run_id = self.submitted("held")
            assert self.begun.wait(100)
            yield run_id
        finally:
            self.let_go.set()
        with self.client() as client:
            client.wait_run(run_id, 100)

    def resolve(self, flow_name: str) -> Flow:
        @task  # type: ignore[untyped-decorator]
        def greet(name: str = "world") -> str:
            return f"Hello, {name}!"

        @task  # type: ignore[untyped-decorator]
        def hold() -> None:
            self.begun.set()
            assert self.let_go.wait(_HELD_SECONDS_MAX)

        @task  # type: ignore[untyped-decorator]
        def stumble() -> None:
            raise RuntimeError("on \x1b[31mpurpose")

        flows = {
            "hello": Flow(name="hello") >> greet,
            "held": Flow(name="held") >> greet >> hold,
            "broken": Flow(name="broken") >> stumble,
        }
        return flows[flow_name]


@contextlib.contextmanager
def open_site(
    nats_url: str,
    data_dir: Path,
    *,
    has_worker: bool = True,
    resolve: Callable[[str], Flow] | None = None,
    **settings: Any,
) -> Iterator[Site]:
    """`resolve`: other flows than those of `Site`."""
    site = Site(config_for(nats_url, data_dir=str(data_dir), run_heartbeat_interval_sec=0.2, **settings))
    is_open, is_over = threading.Event(), threading.Event()
    worker_of = (resolve or site.resolve) if has_worker else None
    thread = threading.Thread(target=lambda: asyncio.run(_serve(site, worker_of, is_open, is_over)), daemon=True)
    thread.start()
    try:
        assert is_open.wait(100)
        yield site
    finally:
        site.let_go.set()
        site.wake()
        is_over.set()
        thread.join(100)
        assert not thread.is_alive()


async def _serve(
    site: Site, resolve: Callable[[str], Flow] | None, is_open: threading.Event, is_over: threading.Event
) -> None:
    """`resolve`: the flows of its worker; None: it has none."""
    app = create_app(site.config)
    async with app.router.lifespan_context(app), listening(app) as port:
        site.url = f"http://127.0.0.1:{port}"
        site.loop, site.backend = asyncio.get_running_loop(), app.state.gateway.backend
        site.logs = site.backend.logs
        worker = await PyocoNatsWorker.connect(site.config, resolve, "anna") if resolve is not None else None
        is_open.set()
        while not is_over.is_set():
            if worker is not None:
                await site.turn(worker)
            else:
                await asyncio.sleep(0.05)
        if worker is not None:
            await worker.close()
    link = await open_link(site.config.nats_url, "tests")
    await forget(link, site.config)
    await link.close()
