"""Jobs over HTTP for tests: submitted as a client would, and ended as a worker would."""

from __future__ import annotations

import contextlib
import hashlib
import io
import secrets
import time
import uuid
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.claim import claim_job, take_slot
from pyoco_server.actions.programs.finish import Output, Settlement, finish_job
from pyoco_server.actions.programs.slots import free_slot
from pyoco_server.config import GridConfig
from pyoco_server.core.api_key import KeyRecord, make_key
from pyoco_server.core.programs.names import client_key
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.doors.http.state import State
from pyoco_server.ports.nats.link import Link, open_link
from pyoco_server.ports.program_queue.port import ClientQueue
from support.gateways import Gateway, fresh_gateway
from support.servers import unique
from support.waiting import eventually

__all__ = [
    "DONE",
    "FAILED",
    "Closed",
    "a_job_id",
    "a_key_of",
    "archive",
    "begin_job",
    "buried",
    "closed_grid_gateway",
    "end_job",
    "fresh_grid_gateway",
    "group_of",
    "letters",
    "post_job",
    "submit_job",
]

#: How most jobs end here.
DONE = Report(status=RunState.COMPLETED, exit_code=0, stdout=b"done\n", run_seconds=0.5)
FAILED = Report(
    status=RunState.FAILED, exit_code=3, error_code=ErrorCode.EXIT_NONZERO, error="exit code 3", stderr=b"no\n"
)


@contextlib.asynccontextmanager
async def fresh_grid_gateway(
    link: Link, url: str, data_dir: Path, grid: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Gateway]:
    """A gateway with a group of its own, and with runs, dead letters and keys of its own."""
    config = GridConfig(**{"exec_group": unique("g"), **(grid or {})})
    async with fresh_gateway(link, url, data_dir, grid=config, **settings) as gateway:
        yield gateway


def group_of(gateway: Gateway) -> str:
    programs = gateway.backend.programs
    assert programs is not None
    return programs.config.exec_group


async def post_job(
    gateway: Gateway,
    exec_name: str = "calcA",
    args: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    headers: Mapping[str, str] | None = None,
    **fields: str,
) -> httpx.Response:
    """As any HTTP client sends it."""
    parts: list[Any] = [("exec_name", (None, exec_name)), *(("arg", (None, arg)) for arg in args)]
    parts += [(name, (None, value)) for name, value in fields.items()]
    parts += [("file", (name, data)) for name, data in (files or {}).items()]
    return await gateway.client.post("/jobs", files=parts, headers=headers)


async def submit_job(gateway: Gateway, exec_name: str = "calcA", **more: Any) -> dict[str, Any]:
    answer = await post_job(gateway, exec_name, **more)
    assert answer.status_code == 200, answer.text
    accepted: dict[str, Any] = answer.json()
    return accepted


async def begin_job(
    gateway: Gateway, exec_name: str = "calcA", client_id: str = "http", tenant_id: str | None = None
) -> ProgramAttempt:
    """The next job of the lane, as a worker holds it."""
    backend, group = gateway.backend, group_of(gateway)
    client = client_key(client_id, tenant_id)
    assert backend.programs is not None
    slot = await take_slot(backend, group, client, "test")
    assert slot is not None
    (delivery,) = await backend.programs.queue.take(ClientQueue(group, exec_name, client))
    attempt = await claim_job(backend, delivery, slot, worker_id="worker-1", holder="test")
    assert isinstance(attempt, ProgramAttempt), attempt
    return attempt


async def end_job(gateway: Gateway, attempt: ProgramAttempt, report: Report = DONE, zipped: bytes | None = None) -> Run:
    """The run, after that attempt has ended it."""
    outputs = [] if zipped is None else [_output("output.zip", zipped)]
    assert await finish_job(gateway.backend, attempt, report, outputs) is Settlement.RECORDED
    if attempt.slot is not None:
        await free_slot(gateway.backend, attempt.slot)
    return attempt.run


def _output(name: str, data: bytes) -> Output:
    async def read() -> AsyncIterator[bytes]:
        yield data

    return Output(name, len(data), hashlib.sha256(data).hexdigest(), read)


def archive(files: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as zipped:
        for name, content in files.items():
            zipped.writestr(zipfile.ZipInfo(name), content)
    return data.getvalue()


def a_job_id() -> str:
    return str(uuid.uuid4())


async def a_key_of(gateway: Gateway, tenant_id: str) -> tuple[str, KeyRecord]:
    """A key that opens this gateway."""
    pepper = gateway.config.auth_pepper
    plain, record = make_key(tenant_id, pepper, time.time(), secrets.token_hex, secrets.token_urlsafe)
    assert await gateway.backend.keys.add(record)
    return plain, record


#: A gateway that asks for keys; what carries the keys of an operator and of two tenants, and their records.
Closed = tuple[Gateway, dict[str, dict[str, str]], dict[str, KeyRecord]]


@contextlib.asynccontextmanager
async def closed_grid_gateway(nats_url: str, data_dir: Path) -> AsyncIterator[Closed]:
    """With `EXEC_AUTH=api_key`."""
    link = await open_link(nats_url, "tests")
    settings: dict[str, Any] = {"http_auth_mode": "api_key", "auth_pepper": "pepper"}
    async with fresh_grid_gateway(link, nats_url, data_dir, {"exec_auth": "api_key"}, **settings) as gateway:
        keys = {who: await a_key_of(gateway, who) for who in ("operator", "t", "u")}
        programs = gateway.backend.programs
        assert programs is not None
        # Which key is an operator's is known only now.
        object.__setattr__(programs.config, "exec_operator_keys", (keys["operator"][1].key_id,))
        headers = {who: {"X-API-Key": plain} for who, (plain, _) in keys.items()}
        yield gateway, headers, {who: record for who, (_, record) in keys.items()}
    await link.close()


async def letters(gateway: Gateway, **query: Any) -> dict[str, Any]:
    page: dict[str, Any] = (await gateway.client.get("/dlq", params=query)).json()
    return page


async def buried(gateway: Gateway, exec_name: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A job that failed, and its letter."""
    accepted = await submit_job(gateway, exec_name, **more)
    client = more.get("client_id", "http")
    await end_job(gateway, await begin_job(gateway, exec_name, client), FAILED)
    state: State = gateway.app.state.gateway
    assert await state.dead_letter_feeder.caught_up(10)

    async def is_listed() -> bool:
        return bool((await letters(gateway, run_id=accepted["run_id"]))["items"])

    await eventually(is_listed)
    (letter,) = (await letters(gateway, run_id=accepted["run_id"]))["items"]
    return accepted, letter
