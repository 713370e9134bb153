"""Real backends for tests of actions, loops and workers, and looks at what they left behind."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pyoco_server.actions.authenticate import NOBODY
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.job import Job, job_of
from pyoco_server.core.run import Caller, Owner, Run, Submission
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link, Patience, Rejected
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring
from support.servers import config_for, forget

__all__ = [
    "ANNA",
    "BERT",
    "Clock",
    "a_submission",
    "a_world",
    "consumer_state",
    "dead_letters",
    "fields_of",
    "has_ended",
    "jobs_left",
    "logged",
    "opened_backend",
    "recorded",
    "run_now",
    "submitted",
]

ANNA = Owner("anna", "a1")
BERT = Owner("bert", "b1")


@dataclass
class Clock:
    """A clock in Unix seconds that is moved by the test only."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def opened_backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with wiring.open_backend(config, "tests", Patience(down_seconds=5.0)) as backend:
        yield backend


@contextlib.asynccontextmanager
async def a_world(link: Link, url: str, **settings: Any) -> AsyncIterator[Backend]:
    """A backend with streams and buckets of its own, which are deleted afterwards."""
    config = config_for(url, **settings)
    try:
        async with opened_backend(config) as backend:
            yield backend
    finally:
        await forget(link, config)


def a_submission(flow_name: str = "flow", tag: str = "default", **more: Any) -> Submission:
    return Submission(**{"flow_name": flow_name, "tag": tag, "tags": (tag,), "params": {}, **more})


async def recorded(backend: Backend, ask: Submission | None = None, caller: Caller = NOBODY) -> tuple[Stored, Job]:
    """A PENDING run and its job, which is not on the queue."""
    ask = ask or a_submission()
    made = await backend.runs.create(accept(ask, caller, str(uuid.uuid4()), backend.clock()))
    assert isinstance(made, Stored)
    return made, job_of(made.run, ask, made.revision)


async def submitted(backend: Backend, flow_name: str, tag: str = "default", **params: Any) -> str:
    stored = await submit(backend, Caller(), a_submission(flow_name, tag, params=params))
    return stored.run.run_id


async def run_now(backend: Backend, run_id: str) -> Run:
    found = await backend.runs.find(run_id)
    assert isinstance(found, Stored), found
    return found.run


async def has_ended(backend: Backend, run_id: str, status: RunState | None = None) -> bool:
    run = await run_now(backend, run_id)
    assert status is None or not run.is_terminal or run.status is status, run
    return run.is_terminal


async def messages_of(link: Link, stream: str) -> list[dict[str, Any]]:
    """Every message of a stream, oldest first, with its subject, headers and JSON body."""
    info = await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any])
    found = []
    for sequence in range(info["state"]["first_seq"], info["state"]["last_seq"] + 1):
        try:
            answer = await link.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence}, dict[str, Any])
        except Rejected:  # acknowledged, and so removed
            continue
        message = answer["message"]
        body = base64.b64decode(message.get("data", ""))
        found.append(
            {
                "subject": message["subject"],
                "headers": base64.b64decode(message.get("hdrs", "")).decode(),
                "text": body.decode(errors="replace"),
                "body": _json(body),
            }
        )
    return found


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


async def dead_letters(link: Link, config: NatsBackendConfig) -> list[dict[str, Any]]:
    return await messages_of(link, config.dlq_stream)


async def jobs_left(link: Link, config: NatsBackendConfig) -> list[dict[str, Any]]:
    return await messages_of(link, config.work_stream)


async def consumer_state(link: Link, config: NatsBackendConfig, tag: str = "default") -> dict[str, Any]:
    """What JetStream says of a tag's consumer: `num_ack_pending`, `num_redelivered`, `delivered`, `ack_floor`."""
    return await link.api(f"CONSUMER.INFO.{config.work_stream}.pyoco_worker_{tag}", {}, dict[str, Any])


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = getattr(record, "pyoco_fields", {})
    return found


def logged(records: list[logging.LogRecord], number: int) -> list[dict[str, Any]]:
    """The fields of every log line with this error id."""
    wanted = f"ERR-PYOCO-{number:04d}"
    return [fields_of(record) for record in records if fields_of(record).get("err_id") == wanted]
