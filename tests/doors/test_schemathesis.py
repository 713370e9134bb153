"""schemathesis asks every operation of the OpenAPI document, those to come included, in valid ways and in others.

Whatever it asks, no answer is a 5xx, and every answer is one that the document promises. Who is told to try again, with
a 503, does so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import secrets
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import jsonschema_rs
import pytest
import requests
import schemathesis
from schemathesis import Case
from schemathesis.checks import (
    CheckFunction,
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.generation.hypothesis.builder import (
    InvalidHeadersExampleMark,
    MissingPathParameters,
    UnserializablePayloadMark,
)
from schemathesis.generation.hypothesis.reporting import ignore_hypothesis_output
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source

from contracts.objects import pieces_of
from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.priced.credit import credit
from pyoco_server.actions.submit import submit
from pyoco_server.config import AwsSettings, NatsBackendConfig, PricedConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.core.dead_letter import DeadLetter, dead_letter_of, encode_dead_letter
from pyoco_server.core.delays import Delay
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.outcome import Completed, DeadReason, Failed, Outcome, Progress
from pyoco_server.core.run import Caller, Owner
from pyoco_server.core.values.kept import Kept
from pyoco_server.core.worker_description import WorkerDescription
from pyoco_server.http_api import create_app
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring.operating import open_keys
from pyoco_server.wiring.priced import open_money
from support.backends import a_submission, opened_backend, recorded
from support.chaos import gateway_alone, is_ready
from support.gateways import FLOW_YAML
from support.servers import NatsServer
from support.waiting import eventually
from support.wheels import build_wheel

#: A request that hangs fails. A busy machine may be slow.
SECONDS_MAX = 60.0
#: How often a door may say "later", in all: on a busy machine NATS may be silent for some seconds, and a gateway says
#: so. A 503 that depends on the request comes each time, uses this up, and is then looked at as any other answer.
LATER_MAX = 100
CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
#: What does not fit where, and why.
EXEMPT: dict[str, CheckFunction] = {
    # Each item gets its own answer.
    "POST /runs/batch": negative_data_rejection,
    # OpenAPI 3.1 has no words for a stream of events: its schema is that of their data. `_check_events` looks at that.
    "GET /runs/{run_id}/watch": response_schema_conformance,
    "GET /runs/{run_id}/logs/stream": response_schema_conformance,
}
#: Operations that need something else than what the name of their parameter says.
AIMED = {
    "GET /runs/{run_id}/watch": "ended_run_id",
    "GET /runs/{run_id}/logs/stream": "ended_run_id",
    "GET /runs/{run_id}/result": "completed_run_id",
    # Each can be started once.
    "POST /runs/{run_id}/start": "delayed_run_id",
    # One letter's run is redriven once: under other params, as those of a redrive are, it would be refused.
    "POST /dlq/{letter_id}/requeue": "plain_letter_id",
    "GET /v1/runs/{run_id}": "priced_run_id",
    "GET /v1/runs/{run_id}/envelope": "priced_run_id",
}
#: No worker is there, so no priced run completes: `test_v1_envelope.py` looks at the answers that are a yes.
NEVER_GRANTED = {"GET /v1/runs/{run_id}/envelope"}
DOCUMENT = create_app(NatsBackendConfig()).openapi()
LABELS = [f"{method.upper()} {path}" for path, methods in DOCUMENT["paths"].items() for method in methods]


@functools.cache
def schema(examples: int, *, corners: bool = False) -> schemathesis.BaseSchema:
    """The same requests every time: what fails here fails again. With `corners`, also one request for each bound, each
    missing and each wrong thing that the document knows."""
    # No keys of its own: a bad one is answered slowly, on purpose.
    generation = {"deterministic": True, "max-examples": examples, "with-security-parameters": False}
    settings = {
        "seed": 1,
        "generation": generation,
        "phases": {"coverage": {"enabled": corners}},
        "suppress-health-check": ["too_slow"],  # that would be the machine's
    }
    return schemathesis.openapi.from_dict(DOCUMENT, config=schemathesis.Config.from_dict(settings))


def play(options: dict[str, Any], label: str, ask: Callable[[Case[Any]], None]) -> None:
    """All requests of one operation. They are generated here: schemathesis's own `parametrize` does so while the tests
    are collected, which every test process does with all of them."""

    def asked(case: Case[Any]) -> None:  # schemathesis marks the function that it is given
        ask(case)

    ours = schema(**options)
    operation = ours.find_operation_by_label(label)
    assert operation is not None
    feedback = FeedbackSources(constants_value_source=make_constants_value_source(ours))
    test = build_operation_test(
        config=ours.config,
        operation=operation,
        test_func=asked,
        given_kwargs={},
        feedback=feedback,
    )
    with ignore_hypothesis_output():
        test()
    for mark in (UnserializablePayloadMark, InvalidHeadersExampleMark, MissingPathParameters):
        assert not mark.get(test), "some requests could not be generated"


A = TypeVar("A", requests.Response, schemathesis.Response)

#: Finds something that is there, by the name of a path parameter. The number says which, if there are several.
Known = dict[str, Callable[[int], str]]


#: Whose key the sessions have.
TEAM_A = Caller("team-a")


@dataclass
class Door:
    """A gateway process, and what it was asked and answered."""

    address: str
    session: requests.Session
    known: Known
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    versions: Iterator[int] = field(default_factory=lambda: count(1))
    later: int = 0

    def ask(self, case: Case[Any]) -> None:
        label = case.operation.label
        # Asked before the aiming: schemathesis takes the file that is put into a form for a wrong one.
        is_good = case.meta is not None and case.meta.generation.mode.is_positive
        more = self._aim(case, label)
        answer = self.patiently(lambda: case.call(self.address, self.session, timeout=SECONDS_MAX, **more))
        self.answers[label, answer.status_code] += 1
        left_out = {EXEMPT.get(label), negative_data_rejection if is_good else None}
        case.validate_response(answer, checks=[check for check in CHECKS if check not in left_out])
        if answer.headers.get("content-type", [""])[0].startswith("text/event-stream"):
            _check_events(answer.text, "RunLogEvent" if label.endswith("/logs/stream") else "RunWatchEvent")

    def patiently(self, send: Callable[[], A]) -> A:
        """The answer that a client goes by: who is told to try again (503) does so. Any other answer is the last."""
        while True:
            answer = send()
            if answer.status_code != 503 or self.later == LATER_MAX:
                return answer
            self.later += 1
            time.sleep(1)

    def _aim(self, case: Case[Any], label: str) -> dict[str, Any]:
        """At something that is there, half of the time: whatever schemathesis thinks of is not. The same request is
        aimed the same way each time. Returns what replaces parts of the request."""
        dice = zlib.crc32(repr((case.path_parameters, case.query, case.headers, case.body)).encode())
        if case.meta is None or not case.meta.generation.mode.is_positive or dice % 2:
            return {}
        for name in case.path_parameters:
            find = self.known.get(AIMED.get(label, name))
            if find is not None:
                case.path_parameters[name] = find(dice // 2)
        body: Any = case.body
        if label == "POST /v1/runs" and isinstance(body, dict):
            # What a pack asks for is not in the document.
            body |= {"pack_type": "decision", "inputs": {"question": "?"}, "reservation": {"max_cost_usd": "0.0500"}}
        if label in {"POST /schedules", "POST /schedules/preview"} and isinstance(body, dict):
            # Few texts are a cron expression, and no schema says which member a kind needs.
            schedule = {"what": {"kind": "flow", "flow_name": "f"}, "when": {"every": 60}, "timezone": "UTC"}
            named = {"name": f"s{next(self.versions)}"} | schedule
            body.clear()
            body |= named if label == "POST /schedules" else {"schedule": schedule}
        if label == "POST /runs/{run_id}/rerun" and isinstance(body, dict):
            # No schema says that two members exclude each other, or which policy is one.
            for name in ("delay", "not_before", "retry", "timeout"):
                body.pop(name, None)
        if label == "POST /runs/yaml" and isinstance(body, dict):
            body["workflow"] = FLOW_YAML.encode()
        if label == "POST /wheels" and isinstance(body, dict):
            # It has no way to give a file its name.
            fields = {name: value for name, value in body.items() if name != "wheel"}
            return {"files": {"wheel": build_wheel(version=f"{next(self.versions)}.0")}, "data": fields}
        return {}

    def check_that_it_also_said_yes(self) -> None:
        """Otherwise nothing but refusals was looked at."""
        granted = {label for label, status in self.answers if status in {200, 201, 202}}
        reachable = {label for label, _ in self.answers if _path_names(label) <= self.known.keys()}
        assert reachable - granted - NEVER_GRANTED == set()


def _path_names(label: str) -> set[str]:
    return {part.strip("{}") for part in label.split("/") if part.startswith("{")}


def _check_events(text: str, shape: str) -> None:
    """Each event is one JSON object, as documented."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    schema = {"$ref": f"#/components/schemas/{shape}", "components": DOCUMENT["components"]}
    for event in events:
        jsonschema_rs.validate(schema, json.loads(event))


async def _seed(config: NatsBackendConfig) -> Known:
    """Runs in every state, a worker, and as many dead letters and wheels as are asked for: they are deleted, too."""
    async with opened_backend(config) as backend:
        progress = Progress(tasks={"a": "SUCCEEDED"}, task_records={"a": {"state": "SUCCEEDED", "output": "ü"}})
        failed = (await _run(backend, Failed(message="on purpose", progress=progress))).run
        plain = (await _run(backend, Failed(message="on purpose, too", progress=progress))).run
        kept = Kept(result={"task": "a"})
        ended = [(await _run(backend, Completed(progress=progress, kept=kept))).run.run_id, failed.run_id]
        others = [(await _run(backend, None)).run.run_id for _ in range(2)]
        await cancel(backend, TEAM_A, others[0], "because")
        others.append((await recorded(backend, caller=TEAM_A))[0].run.run_id)
        description = WorkerDescription(me=Owner("anna", "a1"), tags=("default",))
        await backend.registry.announce(description.record((), backend.clock()))
    letter, plain_letter = (dead_letter_of(run, DeadReason.EXECUTION_ERROR, time.time()) for run in (failed, plain))
    runs = [*ended, *others]
    return {
        "run_id": lambda dice: runs[dice % len(runs)],
        "ended_run_id": lambda dice: ended[dice % len(ended)],  # a watch of one ends
        "completed_run_id": lambda _: ended[0],
        "delayed_run_id": lambda _: asyncio.run(_delayed(config)),
        "worker_id": lambda _: "anna",
        "letter_id": lambda _: asyncio.run(_bury(config, letter)),
        "plain_letter_id": lambda _: asyncio.run(_bury(config, plain_letter)),
        "wheel_name": lambda dice: asyncio.run(_shelve(config, f"seeded-0.{dice}-py3-none-any.whl")),
    }


async def _delayed(config: NatsBackendConfig) -> str:
    """A run that waits for its time."""
    ask = a_submission(delay=Delay(3600.0))
    async with opened_backend(config) as backend:
        return (await submit(backend, TEAM_A, ask)).run.run_id


async def _bury(config: NatsBackendConfig, letter: DeadLetter) -> str:
    """The id of a new dead letter."""
    link = await open_link(config.nats_url, "tests")
    try:
        return str(await link.store(f"{config.dlq_subject_prefix}.{letter.tag}", encode_dead_letter(letter)))
    finally:
        await link.close()


async def _shelve(config: NatsBackendConfig, wheel_name: str) -> str:
    """The name of a wheel that is there."""
    async with opened_backend(config) as backend:
        await backend.wheels.put(wheel_name, pieces_of(b"its bytes"), 100)
    return wheel_name


async def _run(backend: Backend, outcome: Outcome | None) -> Stored:
    """A run that a worker holds, or one that has ended."""
    stored, job = await recorded(backend, caller=TEAM_A)
    await backend.queue.put(job)
    run = claim(stored.run, Owner("anna", "a1"), "attempt-1", time.time())
    run = run if outcome is None else conclude(run, outcome, time.time())
    written = await backend.runs.replace(run, stored.revision)
    assert isinstance(written, Stored)
    return written


@contextlib.contextmanager
def _served(folder: Path, **settings: str) -> Iterator[tuple[str, NatsBackendConfig]]:
    """A gateway process of its own, on a NATS of its own."""
    nats = NatsServer(folder / "nats")
    nats.start()
    config = NatsBackendConfig(nats_url=nats.url, data_dir=str(folder / "data"), **settings)  # type: ignore[arg-type]
    try:
        with gateway_alone(config, folder, PYOCO_PRICED_ENABLED="1") as (process, address):
            asyncio.run(eventually(lambda: is_ready(address), 30.0))
            yield address, config
            assert process.is_alive, process.last_words
    finally:
        nats.kill()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with _served(tmp_path_factory.mktemp("open")) as (address, config), requests.Session() as session:
        # Under /v1 a key is always needed; elsewhere a valid one makes the caller one of its tenant (SAFE-5).
        session.headers["X-API-Key"] = asyncio.run(_key(config))
        asyncio.run(_endow(config))
        door = Door(address, session, asyncio.run(_seed(config)))
        priced = _priced_run(door)
        door.known |= {"priced_run_id": lambda _: priced, "tenant_id": lambda _: "team-a"}
        yield door
        print(sorted(door.answers.items()))
        door.check_that_it_also_said_yes()


@pytest.fixture(scope="module")
def closed_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """Authentication is on, and the session carries a key."""
    folder = tmp_path_factory.mktemp("closed")
    with (
        _served(folder, http_auth_mode="api_key", auth_pepper="pepper") as (address, config),
        requests.Session() as session,
    ):
        session.headers["X-API-Key"] = asyncio.run(_key(config))
        asyncio.run(eventually(lambda: session.get(f"{address}/runs").status_code == 200))
        door = Door(address, session, {})
        yield door
        # Fewer examples than the open door gets: not every operation can be expected to be granted one.
        assert not door.answers or any(status == 200 for _, status in door.answers)  # another process may have asked


async def _key(config: NatsBackendConfig) -> str:
    async with open_keys(config) as keys:
        plain, record = make_key("team-a", config.auth_pepper, time.time(), secrets.token_hex, secrets.token_urlsafe)
        assert await keys.add(record)
        return plain


async def _endow(config: NatsBackendConfig) -> None:
    """Money, and no limit, for the tenant of the key."""
    async with open_money(config, PricedConfig(), AwsSettings()) as priced:
        await credit(priced, "team-a", 1_000_000_000, "for the tests")
        await priced.ledger.transact(lambda tx: tx.tenants.set_rate_limit("team-a", 1_000_000))


def _priced_run(door: Door) -> str:
    """The id of one that waits."""
    body: Any = {"pack_type": "decision", "inputs": {"question": "?"}, "reservation": {"max_cost_usd": "0.2500"}}
    address, headers = f"{door.address}/v1/runs", {"Idempotency-Key": "the-first-one"}
    answer = door.patiently(lambda: door.session.post(address, json=body, headers=headers, timeout=SECONDS_MAX))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


@pytest.mark.parametrize("label", LABELS)
def test_whatever_is_asked_is_answered_as_documented(label: str, door: Door) -> None:
    """FLOW-50, FLOW-390"""
    play({"examples": 10, "corners": True}, label, door.ask)


@pytest.mark.parametrize("label", LABELS)
def test_whatever_is_asked_with_a_key_is_answered_as_documented(label: str, closed_door: Door) -> None:
    """FLOW-45, FLOW-50"""
    play({"examples": 25}, label, closed_door.ask)


@pytest.mark.parametrize("label", LABELS)
def test_whatever_is_asked_without_a_key_is_not_looked_at(label: str, closed_door: Door) -> None:
    """FLOW-45, FLOW-46, FLOW-51: refused in the documented way, unless it is open to everybody"""
    checks: list[CheckFunction] = [not_a_server_error, content_type_conformance, response_schema_conformance]

    def ask(case: Case[Any]) -> None:
        answer = closed_door.patiently(lambda: case.call(closed_door.address, timeout=SECONDS_MAX))
        case.validate_response(answer, checks=checks)
        assert (answer.status_code == 401) == ("security" in case.operation.definition.raw)

    play({"examples": 1}, label, ask)
