"""A gateway in a thread of its own, and a worker that ends its jobs: for tests of commands, which block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.claim import claim_job, take_slot
from pyoco_server.actions.programs.inputs import open_inputs
from pyoco_server.actions.programs.slots import free_slot
from pyoco_server.core.programs.report import Report
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.ports.nats.link import open_link
from support.gateways import Gateway, listening
from support.grid.http_jobs import DONE, FAILED, archive, end_job, fresh_grid_gateway, group_of

__all__ = ["GridSite", "open_grid_site"]


@dataclass
class GridSite:
    url: str = ""

    def client(self) -> PyocoHttpClient:
        return PyocoHttpClient(self.url)


#: How the programs of a site end: a report, and a zip or none. Others are never begun.
_ENDS: dict[str, Callable[[dict[str, bytes], ProgramAttempt], tuple[Report, bytes | None]]] = {
    "calcA": lambda files, attempt: (
        replace(DONE, stdout=" ".join(attempt.job.args).encode() + b"\n", stderr=b"noise\n"),
        archive({"result.txt": b"42\n"} | {f"in/{name}": data for name, data in files.items()}),
    ),
    "silent": lambda files, attempt: (replace(DONE, stdout=b""), None),
    "fails": lambda files, attempt: (FAILED, archive({"partial.txt": b"half"})),
    "escapes": lambda files, attempt: (replace(DONE, stdout=b"\x1b[31mred\n"), archive({"../out.txt": b"no"})),
}


@contextlib.contextmanager
def open_grid_site(nats_url: str, data_dir: Path) -> Iterator[GridSite]:
    site, is_open, is_over = GridSite(), threading.Event(), threading.Event()
    serve = _serve(site, nats_url, data_dir, is_open, is_over)
    thread = threading.Thread(target=lambda: asyncio.run(serve), daemon=True)
    thread.start()
    try:
        assert is_open.wait(100)
        yield site
    finally:
        is_over.set()
        thread.join(100)
        assert not thread.is_alive()


async def _serve(
    site: GridSite, nats_url: str, data_dir: Path, is_open: threading.Event, is_over: threading.Event
) -> None:
    link = await open_link(nats_url, "tests")
    async with fresh_grid_gateway(link, nats_url, data_dir) as gateway, listening(gateway.app) as port:
        site.url = f"http://127.0.0.1:{port}"
        is_open.set()
        while not is_over.is_set():
            async for attempt in _begun(gateway):
                async with open_inputs(gateway.backend, attempt.job) as staged:
                    files = {
                        each.name: b"".join([piece async for piece in staged.read(each.name)]) for each in staged.files
                    }
                await end_job(gateway, attempt, *_ENDS[attempt.job.exec_name](files, attempt))
            await asyncio.sleep(0.01)
    await link.close()


async def _begun(gateway: Gateway) -> AsyncIterator[ProgramAttempt]:
    programs, group = gateway.backend.programs, group_of(gateway)
    assert programs is not None
    for client_queue in programs.queue.client_queues(group):
        if client_queue.exec_name not in _ENDS:
            continue
        for delivery in await programs.queue.take(client_queue):
            slot = await take_slot(gateway.backend, group, client_queue.client, "test")
            assert slot is not None
            attempt = await claim_job(gateway.backend, delivery, slot, worker_id="worker-1", holder="test")
            if isinstance(attempt, ProgramAttempt):
                yield attempt
            else:
                await free_slot(gateway.backend, slot)
