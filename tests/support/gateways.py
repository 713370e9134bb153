"""The HTTP door on a real NATS server: in this process for most tests, as a process of its own where that matters."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import uvicorn

from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.outcome import Completed, Failed, Progress
from pyoco_server.core.run import Owner, Run
from pyoco_server.doors.http.app import Gateway as GatewayApp
from pyoco_server.doors.http.state import State
from pyoco_server.errors import CATALOGUE
from pyoco_server.http_api import create_app
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.runs.port import Stored
from support.servers import config_for, forget
from support.surroundings import variables_without
from support.timers import variables_of
from support.waiting import eventually
from support.warm_processes import begun

__all__ = [
    "FLOW_YAML",
    "PROGRESS",
    "Gateway",
    "claimed",
    "ended",
    "environment",
    "error",
    "fresh_gateway",
    "gateway_process",
    "ids",
    "job_of",
    "listening",
    "open_gateway",
    "shown",
    "stock_of",
    "stored",
    "submit",
    "submit_yaml",
]

ANNA = Owner("anna", "instance-1")
PROGRESS = Progress(tasks={"a": "SUCCEEDED"}, task_records={"a": {"state": "SUCCEEDED", "output": "ü"}})
FLOW_YAML = """\
version: 1
tasks:
  prepare: {use: demo/prepare}
  finish: {callable: "my_package.tasks:finish"}
flow:
  defaults: {mode: バッチ, retries: 3, nested: {deep: [1, 2.5, null]}}
  graph: |
    prepare >> finish
"""


@dataclass(frozen=True)
class Gateway:
    """A gateway in this process, and a client that is connected to it."""

    app: GatewayApp
    client: httpx.AsyncClient
    config: NatsBackendConfig

    @property
    def backend(self) -> GatewayBackend:
        state: State = self.app.state.gateway
        return state.backend


@contextlib.asynccontextmanager
async def open_gateway(
    config: NatsBackendConfig, grid: GridConfig | None = None, **headers: str
) -> AsyncIterator[Gateway]:
    """The whole application on these settings. A defect of ours (a 500) is raised in the test."""
    app = create_app(config, grid)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
            yield Gateway(app, client, config)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they belong to pytest


@contextlib.asynccontextmanager
async def listening(app: GatewayApp, http: Literal["httptools", "h11"] = "httptools") -> AsyncIterator[int]:
    """The application behind a real socket, for bytes that no client would send. Gives the port."""
    settings = uvicorn.Config(app, port=0, http=http, ws="none", lifespan="off", log_config=None)
    server = _Server(settings)
    serving = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started)
        yield int(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = server.force_exit = True
        await serving


@contextlib.asynccontextmanager
async def fresh_gateway(link: Link, url: str, data_dir: Path, **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway with streams and buckets of its own, which are deleted afterwards. Those of programs, whose
    settings are `grid`, are shared: tests keep apart by their group."""
    grid: GridConfig | None = settings.pop("grid", None)
    config = config_for(url, data_dir=str(data_dir), **settings)
    try:
        async with open_gateway(config, grid) as gateway:
            yield gateway
    finally:
        await forget(link, config)


class _Info(msgspec.Struct):
    state: dict[str, Any]


async def stock_of(config: NatsBackendConfig, link: Link) -> dict[str, int]:
    """The last sequence of each stream and bucket: whoever wrote or published anything has moved one."""
    names = [resource.name for resource in resources_of(config)]
    infos = [await link.api(f"STREAM.INFO.{name}", {}, _Info) for name in names]
    return {name: info.state["last_seq"] for name, info in zip(names, infos, strict=True)}


def error(number: int, detail: str) -> dict[str, str]:
    """FLOW-50: the whole body of an error without a list of problems."""
    text = CATALOGUE[number]
    return {
        "detail": detail,
        "err_id": f"ERR-PYOCO-{number:04d}",
        "msg_id": f"MSG-PYOCO-{number:04d}",
        "message": text.en,
        "message_ja": text.ja,
    }


async def submit(gateway: Gateway, headers: dict[str, str] | None = None, /, **body: Any) -> str:
    answer = await gateway.client.post("/runs", json={"flow_name": "hello"} | body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["run_id"])


async def submit_yaml(gateway: Gateway, text: str = FLOW_YAML, **fields: str) -> httpx.Response:
    files = {"workflow": ("flow.yaml", text.encode(), "application/yaml")}
    return await gateway.client.post("/runs/yaml", files=files, data={"flow_name": "main"} | fields)


async def stored(gateway: Gateway, run_id: str) -> Stored:
    found = await gateway.backend.runs.find(run_id)
    assert isinstance(found, Stored)
    return found


async def claimed(gateway: Gateway, run_id: str, owner: Owner = ANNA) -> Run:
    """The run, as a worker holds it."""
    found = await stored(gateway, run_id)
    taken = await gateway.backend.runs.replace(claim(found.run, owner, "attempt-1", time.time()), found.revision)
    assert isinstance(taken, Stored)
    return taken.run


async def ended(gateway: Gateway, run_id: str, outcome: Completed | Failed) -> Run:
    """The run, after a worker has ended it."""
    await claimed(gateway, run_id)
    found = await stored(gateway, run_id)
    written = await gateway.backend.runs.replace(conclude(found.run, outcome, time.time()), found.revision)
    assert isinstance(written, Stored)
    return written.run


async def job_of(link: Link, gateway: Gateway, tag: str) -> tuple[dict[str, Any], str]:
    """The newest job of a tag and its raw headers."""
    subject = f"{gateway.config.work_subject_prefix}.{tag}"
    asked = {"last_by_subj": subject}
    answer = await link.api(f"STREAM.MSG.GET.{gateway.config.work_stream}", asked, dict[str, Any])
    message = answer["message"]
    return json.loads(base64.b64decode(message["data"])), base64.b64decode(message["hdrs"]).decode()


async def shown(gateway: Gateway, **query: Any) -> list[Any]:
    """As soon as lists are true: on a busy machine the gateway may not have heard NATS for a while."""
    answers: list[httpx.Response] = []

    async def is_answered() -> bool:
        answers.append(await gateway.client.get("/runs", params=query))
        return answers[-1].status_code != 503

    await eventually(is_answered)
    assert answers[-1].status_code == 200, answers[-1].text
    runs: list[Any] = answers[-1].json()
    return runs


async def ids(gateway: Gateway, **query: Any) -> list[str]:
    return [run["run_id"] for run in await shown(gateway, **query)]


def environment(config: NatsBackendConfig) -> dict[str, str]:
    """The variables that make another process use the same settings."""
    assert not config.nats_url.startswith("memory://"), "another process cannot reach a server in memory: `real_nats`"
    inherited = variables_without("PYOCO_")
    inherited["PYOCO_PRICED_ENABLED"] = "0"  # flows alone
    return inherited | variables_of(config)


@contextlib.contextmanager
def gateway_process(config: NatsBackendConfig, port: int, log: Path) -> Iterator[str]:
    """`uvicorn pyoco_server.http_api:create_app --factory` as a user would start it (FLOW-390). Gives its address."""
    command = [sys.executable, "-m", "uvicorn", "pyoco_server.http_api:create_app", "--factory", "--port", str(port)]
    with log.open("ab") as output:
        process = begun(command, stdout=output, stderr=output, env=environment(config))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
