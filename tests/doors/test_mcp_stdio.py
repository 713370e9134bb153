"""`pyoco-mcp`, as agents start it: the official client, a real gateway, and none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import pytest_asyncio

from support.agents import COMMAND, Mode, agent_over_stdio, call
from support.gateways import listening
from support.priced.gateways import PricedDoor
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

DECISION, GET = "dpp_decision_run_submit", "dpp_run_get"
ASK: dict[str, Any] = {"question": "Ship on Friday?", "max_cost_usd": 0.25}
#: As a key looks; it opens nothing.
KEY = "pyoco_0123456789abcdef_do-not-show-this"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": DECISION, "arguments": ASK}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(priced_door: PricedDoor) -> AsyncIterator[str]:
    async with listening(priced_door.gateway.app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def errors(tmp_path: Path) -> Iterator[TextIO]:
    """What the command logs. Whatever happens: lines of JSON, no traceback, no key."""
    path = tmp_path / "stderr"
    with path.open("w+", encoding="utf-8") as file:
        yield file
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["service"] == "pyoco-server:mcp"
    assert not any("exc_type" in line for line in lines)
    assert KEY not in path.read_text()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody listens, and nobody begins to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_agent_submits_polls_and_is_refused(
    priced_door: PricedDoor, server: str, errors: TextIO, mode: Mode
) -> None:
    """PRICED-216 to PRICED-219, over stdio: key and server from the environment"""
    payer, key = await priced_door.payer("0.6000"), f"agent-{uuid.uuid4()}"
    plain = payer.headers["Authorization"].removeprefix("Bearer ")
    async with agent_over_stdio(errors, mode=mode, PYOCO_SERVER_URL=server, PYOCO_API_KEY=plain) as agent:
        assert len((await agent.list_tools()).tools) == 6
        receipt = await call(agent, DECISION, **ASK, idempotency_key=key)
        assert not receipt.is_error
        assert receipt["reservation"]["max_cost_usd"] == "0.2500"
        assert await call(agent, DECISION, **ASK, idempotency_key=key) == receipt
        assert (await call(agent, GET, run_id=receipt["run_id"]))["result"] is None
        await priced_door.completed(receipt["run_id"], {"answer": "Yes."})
        done = await call(agent, GET, run_id=receipt["run_id"])
        assert done["status"] == "COMPLETED"
        assert done["result"]["presigned_url"].startswith(server)
        drained = await call(agent, DECISION, question="q", max_cost_usd=5)
        assert drained.is_error
        assert (drained["status"], drained["reason_code"]) == (402, "BUDGET_DRAINED")
        for cost in (0.12345, 0.005, True, "0.1"):
            said = await call(agent, DECISION, question="q", max_cost_usd=cost)
            assert said.is_error
            assert said["errors"][0]["pointer"] == "/max_cost_usd"
        gone = await call(agent, GET, run_id=str(uuid.uuid4()))
        assert (gone["status"], gone["reason_code"]) == (404, "RUN_NOT_FOUND")
    assert await priced_door.runs_of(payer) == 1


async def test_a_bad_key_is_told_by_the_tool(server: str, errors: TextIO) -> None:
    """PRICED-62, PRICED-219"""
    async with agent_over_stdio(errors, "--server", server, PYOCO_API_KEY=KEY) as agent:
        refused = await call(agent, DECISION, **ASK)
    assert (refused["status"], refused["reason_code"]) == (401, "AUTH_INVALID")
    assert KEY not in str(refused)


async def test_while_the_gateway_is_away_the_tool_says_so_and_stays(nobody: str, errors: TextIO) -> None:
    """PRICED-217, PRICED-219"""
    async with agent_over_stdio(errors, "--patience", "0.4", PYOCO_SERVER_URL=nobody, PYOCO_API_KEY=KEY) as agent:
        for _ in range(2):
            away = await call(agent, DECISION, **ASK)
            assert away.is_error
            assert (away["status"], away["reason_code"]) == (503, "DEPENDENCY_UNAVAILABLE")
            assert f"The gateway at {nobody} cannot be reached." in away["detail"]
            assert away.texts[1].startswith("idempotency_key of this call: ")
        assert len((await agent.list_tools()).tools) == 6


async def test_a_gateway_that_dies_in_a_call_is_asked_again_with_the_same_key(errors: TextIO) -> None:
    """PRICED-217: one UUID for all tries of one call"""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await heard(reader))
        if len(asked) > 1:
            body = b'{"run_id": "5b0c", "status": "QUEUED", "reservation": {}, "poll": {}, "meta": {}}'
            writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    gateway = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with gateway:
        url = f"http://127.0.0.1:{gateway.sockets[0].getsockname()[1]}"
        async with agent_over_stdio(errors, "--server", url, PYOCO_API_KEY=KEY) as agent:
            receipt = await call(agent, DECISION, **ASK)
    assert not receipt.is_error
    keys = [line for head in asked for line in head.split(b"\r\n") if line.lower().startswith(b"idempotency-key")]
    assert keys == [f"Idempotency-Key: {receipt['idempotency_key']}".encode()] * 2
    assert all(f"Authorization: Bearer {KEY}".encode() in head for head in asked)


async def heard(reader: asyncio.StreamReader) -> bytes:
    """The head of a request, once all of it has come: who answers before that, and hangs up, may not be heard."""
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    await reader.readexactly(int(length))
    return head


@contextlib.asynccontextmanager
async def started(errors: TextIO, *arguments: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        COMMAND, *arguments, stdin=pipe, stdout=pipe, stderr=errors, env=kept | {"PYOCO_API_KEY": KEY} | variables
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def greet(process: asyncio.subprocess.Process, *more: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    for message in (INITIALIZE, INITIALIZED, *more):
        process.stdin.write(json.dumps(message).encode() + b"\n")
    await process.stdin.drain()
    answer: dict[str, Any] = json.loads(await process.stdout.readline())
    return answer


class Silent:
    """The command without a gateway, greeted; and what it logs."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        self._process, self._errors = process, errors

    async def tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()

    async def ask(self, line: bytes) -> dict[str, Any]:
        await self.tell(line)
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(await asyncio.wait_for(self._process.stdout.readline(), 120))
        return answer

    def logged(self) -> list[dict[str, Any]]:
        whole, _, _ = self._errors.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def silent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Silent]:
    path = tmp_path_factory.mktemp("silent") / "stderr"
    with path.open("w", encoding="utf-8") as errors:
        async with started(errors, "--server", "http://127.0.0.1:9") as process:
            await greet(process)
            yield Silent(process, path)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 0), (signal.SIGINT, 130), (None, 0)],
    ids=["SIGTERM", "SIGINT", "end of input"],
)
async def test_it_ends_at_once_when_it_is_told_to(
    nobody: str, errors: TextIO, number: signal.Signals | None, code: int
) -> None:
    """With a call under way that would be tried for ten more minutes; stdout has had the protocol alone"""
    async with started(errors, "--server", nobody, "--patience", "600") as process:
        assert (await greet(process, CALL))["id"] == 1
        if number is None:
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 120) == code
        assert process.stdout is not None
        for line in (await process.stdout.read()).splitlines():
            assert json.loads(line)["jsonrpc"] == "2.0"


async def test_an_agent_that_does_not_read_does_not_hold_it(nobody: str, errors: TextIO) -> None:
    """A write into a full pipe cannot be cancelled"""
    async with started(errors, "--server", nobody) as process:
        await greet(process)
        assert process.stdin is not None
        for number in range(200):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/list"}
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.send_signal(signal.SIGTERM)
        await eventually(lambda: process.returncode is not None)  # `wait` would wait for somebody to read, too
        assert process.returncode == 0
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # asyncio has no other way


async def test_an_agent_that_has_gone_is_no_error(nobody: str, errors: TextIO) -> None:
    """Its end of stdout is closed first"""
    async with started(errors, "--server", nobody) as process:
        await greet(process)
        assert process.stdin is not None
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # asyncio has no other way
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).encode() + b"\n")
        assert await asyncio.wait_for(process.wait(), 120) == 0


async def test_what_is_asked_before_the_input_ends_is_answered(
    priced_door: PricedDoor, server: str, errors: TextIO
) -> None:
    """As with `printf ... | pyoco-mcp`; lines that are no message do no harm"""
    payer = await priced_door.payer()
    plain = payer.headers["Authorization"].removeprefix("Bearer ")
    lines = [json.dumps(INITIALIZE), json.dumps(INITIALIZED), "no JSON", "[]", "\x00\xff", json.dumps(CALL)]
    async with started(errors, "--server", server, PYOCO_API_KEY=plain) as process:
        output, _ = await asyncio.wait_for(process.communicate("\n".join(lines).encode("latin-1") + b"\n"), 120)
    answers = {each.get("id"): each for each in map(json.loads, output.splitlines())}
    assert answers[2]["result"]["structuredContent"]["status"] == "QUEUED"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("line", "number", "code"),
    [
        (b'{"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"secret": "\\ud83d"}}', 9, -32700),
        (b'{"jsonrpc": "2.0", "id": "nine", "method": "ping", "params": {"x": ' + b"9" * 5000 + b"}}", "nine", -32700),
        (b'{"jsonrpc": "2.0", "id": "\\ud83d", "method": "ping"}', None, -32700),
        (b'{"jsonrpc": "2.0", "id": ' + b"9" * 5000 + b', "method": "ping"}', None, -32700),
        (
            b'{"jsonrpc": "2.0", "id": 9, "method": "x", "params": {"secret": ' + b"[" * 400 + b"]" * 400 + b"}}",
            9,
            -32700,
        ),
        (b'{"jsonrpc": "2.0", "id": 9, "method": "secret \xff"}', None, -32700),
        (b"[" * 100_000, None, -32700),
        (b"secret", None, -32700),
        (b"\x00\xff", None, -32700),
        (b'[{"jsonrpc": "2.0", "id": 9, "method": "ping"}]', None, -32600),
        (b"null", None, -32600),
        (b"{}", None, -32600),
        (b'{"jsonrpc": "2.0", "id": 9}', 9, -32600),
        (b'{"jsonrpc": "2.0", "id": 9, "method": "ping", "params": ["secret"]}', 9, -32600),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', None, -32600),
        (b'{"jsonrpc": "2.0", "id": {"a": "secret"}, "method": "ping"}', None, -32600),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_is_no_message_is_told_so(silent: Silent, line: bytes, number: int | str | None, code: int) -> None:
    """As at `/mcp/`: whoever asked would wait for ever. Nothing of it is told again, but the id where it can be read"""
    before = silent.logged()
    answer = await silent.ask(line)
    assert (answer["jsonrpc"], answer["id"], answer["error"]["code"]) == ("2.0", number, code)
    assert "secret" not in str(answer)
    await eventually(lambda: len(silent.logged()) > len(before))
    [told] = silent.logged()[len(before) :]
    assert (told["message"], told["code"]) == ("message refused", code)
    assert "secret" not in str(told)


async def test_what_needs_no_answer_gets_none(silent: Silent) -> None:
    """Empty lines, notifications, and answers to nothing"""
    before = silent.logged()
    for line in (
        b"",
        b" \r",
        b'{"jsonrpc": "2.0", "id": 1, "result": {}}',
        b'{"jsonrpc": "2.0", "method": "notifications/x"}',
    ):
        await silent.tell(line)
    assert (await silent.ask(b'{"jsonrpc": "2.0", "id": "p", "method": "ping", "params": null}'))["id"] == "p"
    assert silent.logged() == before


@pytest.mark.parametrize(
    ("number", "is_answering"), [(None, True), (signal.SIGTERM, False)], ids=["end of input", "SIGTERM"]
)
async def test_who_ends_it_in_a_call_still_hears_the_key(
    errors: TextIO, number: signal.Signals | None, is_answering: bool
) -> None:
    """PRICED-217: in the pause between two tries, and while the gateway does not answer"""
    asked: list[bytes] = []
    is_asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await heard(reader))
        if is_answering:
            body = b'{"reason_code": "DEPENDENCY_UNAVAILABLE"}'
            head = b"HTTP/1.1 503 Away\r\nRetry-After: 300\r\nContent-Length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            await writer.drain()
        is_asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as gateway:
        url = f"http://127.0.0.1:{gateway.sockets[0].getsockname()[1]}"
        async with started(errors, "--server", url, "--patience", "600") as process:
            assert (await greet(process, CALL))["id"] == 1
            await asyncio.wait_for(is_asked.wait(), 120)
            assert process.stdin is not None
            assert process.stdout is not None
            if number is None:
                process.stdin.close()
            else:
                process.send_signal(number)
            answer = json.loads(await asyncio.wait_for(process.stdout.readline(), 120))
            assert await asyncio.wait_for(process.wait(), 120) == 0
    assert answer["id"] == 2
    assert answer["result"]["isError"] is True
    assert answer["result"]["structuredContent"]["reason_code"] == "DEPENDENCY_UNAVAILABLE"
    assert len(asked) == 1
    key = answer["result"]["content"][1]["text"].removeprefix("idempotency_key of this call: ")
    assert f"Idempotency-Key: {key}\r\n".encode() in asked[0]


async def test_an_answer_within_the_grace_is_still_told(errors: TextIO) -> None:
    """PRICED-217: a call is one call, pauses between its tries included"""
    tries = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        await heard(reader)
        if tries > 1:
            body = b'{"run_id": "5b0c", "status": "QUEUED", "reservation": {}, "poll": {}, "meta": {}}'
            writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as gateway:
        url = f"http://127.0.0.1:{gateway.sockets[0].getsockname()[1]}"
        async with started(errors, "--server", url) as process:
            lines = [json.dumps(each).encode() for each in (INITIALIZE, INITIALIZED, CALL)]
            output, _ = await asyncio.wait_for(process.communicate(b"\n".join(lines) + b"\n"), 120)
    assert json.loads(output.splitlines()[-1])["result"]["structuredContent"]["run_id"] == "5b0c"
    assert tries == 2


async def test_a_strange_answer_does_not_end_it(errors: TextIO) -> None:
    """PRICED-219: what cannot be written again is not passed on"""
    bodies = [b'{"run_id": "\\ud800"}', b'{"run_id": NaN}', b'{"a":' * 253 + b"1" + b"}" * 253]
    waiting = list(bodies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        body = waiting.pop(0)
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as gateway:
        url = f"http://127.0.0.1:{gateway.sockets[0].getsockname()[1]}"
        async with agent_over_stdio(errors, "--server", url, PYOCO_API_KEY=KEY) as agent:
            for _ in bodies:
                said = await call(agent, DECISION, **ASK)
                assert said.is_error
                assert said["reason_code"] == "DEPENDENCY_UNAVAILABLE"
                assert said.texts[1].startswith("idempotency_key of this call: ")


async def test_a_profile_of_the_client_is_used(
    priced_door: PricedDoor, server: str, tmp_path: Path, errors: TextIO
) -> None:
    """Server and key under a name, as with `pyoco-client`"""
    payer = await priced_door.payer()
    config = tmp_path / "client.toml"
    plain = payer.headers["Authorization"].removeprefix("Bearer ")
    config.write_text(f'[profiles.here]\nserver = "{server}"\napi_key = "{plain}"\n')
    config.chmod(0o600)
    async with agent_over_stdio(errors, "--profile", "here", PYOCO_CLIENT_CONFIG=str(config)) as agent:
        assert not (await call(agent, DECISION, **ASK)).is_error
