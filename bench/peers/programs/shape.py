"""What every peer's program can do, and the commands it is driven by: `python -m bench.peers.programs.on_x COMMAND`.

    call CLIENTS SECONDS   the library's own enqueue, over and over, from so many threads or coroutines; no HTTP
    drain KIND=COUNT ...   wait until workers are warm; then for each kind queue so many jobs while they stand still,
                           let them go, and wait until the end of each is stored
    wait COUNT             one job after another, from the call until its end is seen
    reset                  forget every job

Each answers with one line of JSON; `drain` says when they are warm, and of each kind when it is queued, and its rate,
and waits for a line of ours before and after it queues. `door(program)` is the FastAPI application for all of them.
This runs in the peer's environment: only the standard library, FastAPI and uvloop are there.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import uvloop
from fastapi import FastAPI
from pydantic import BaseModel

__all__ = ["BlockingProgram", "Program", "door", "main"]

#: Of so many jobs the driver looks at the end, so often.
_LOOK_AT = 100
_LOOK_SECONDS = 0.01
_DRAIN_SECONDS_MAX = 60.0
#: Before any is timed: the first ones wait for the worker to start.
_WARM = 5
_WARM_DRAIN = 40
_FILL_AT_ONCE = 32


class Program(abc.ABC):
    """A peer's library in one shape. `kind` is noop or chain."""

    is_blocking = False

    async def open(self) -> None:  # noqa: B027  (a library that connects by itself needs neither)
        """Connect."""

    async def close(self) -> None:  # noqa: B027
        """Let go of what `open` took."""

    @abc.abstractmethod
    async def send(self, kind: str) -> Any:
        """Put one job on the queue; whatever the library gives back for it."""

    @abc.abstractmethod
    def id_of(self, sent: Any) -> str:
        """By what the end of it is found."""

    @abc.abstractmethod
    async def wait(self, sent: Any) -> None:
        """The library's best way to wait for the end. Raises when it is not a good one."""

    @abc.abstractmethod
    async def ended(self, ids: Sequence[str]) -> list[bool]:
        """Which of them have an end that is stored."""

    @abc.abstractmethod
    async def reset(self) -> None:
        """No job and no result is left."""


class BlockingProgram(Program):
    """One whose library blocks."""

    is_blocking = True

    @abc.abstractmethod
    def send_now(self, kind: str) -> Any: ...

    @abc.abstractmethod
    def wait_now(self, sent: Any) -> None: ...

    @abc.abstractmethod
    def ended_now(self, ids: Sequence[str]) -> list[bool]: ...

    @abc.abstractmethod
    def reset_now(self) -> None: ...

    # The driver does one thing at a time: nobody is kept from anything.
    async def send(self, kind: str) -> Any:
        return self.send_now(kind)

    async def wait(self, sent: Any) -> None:
        self.wait_now(sent)

    async def ended(self, ids: Sequence[str]) -> list[bool]:
        return self.ended_now(ids)

    async def reset(self) -> None:
        self.reset_now()


class Submit(BaseModel):
    """The body of ours, so that each of them reads the same."""

    flow_name: str
    params: dict[str, Any] = {}


class Accepted(BaseModel):
    run_id: str


def door(program: Program) -> FastAPI:
    """`POST /runs`: check the body, call the library, answer. One that blocks is called in FastAPI's threads."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await program.open()
        yield
        await program.close()

    app = FastAPI(lifespan=lifespan)

    async def post_awaited(body: Submit) -> Accepted:
        return Accepted(run_id=program.id_of(await program.send(body.flow_name)))

    def post_blocking(body: Submit) -> Accepted:
        assert isinstance(program, BlockingProgram)
        return Accepted(run_id=program.id_of(program.send_now(body.flow_name)))

    app.post("/runs")(post_blocking if program.is_blocking else post_awaited)
    return app


def main(program: Program) -> None:
    command, *arguments = sys.argv[1:]
    uvloop.run(_driven(program, command, arguments))


async def _driven(program: Program, command: str, arguments: list[str]) -> None:
    await program.open()
    try:
        if command == "call":
            clients, seconds = int(arguments[0]), float(arguments[1])
            calls = _called_in_threads if isinstance(program, BlockingProgram) else _called
            _say({"per_second": await calls(program, clients, seconds)})  # type: ignore[arg-type]
        elif command == "drain":
            counts = {kind: int(count) for kind, _, count in (word.partition("=") for word in arguments)}
            await _warmed(program, counts)
            for kind, count in counts.items():
                _say({"per_second": await _drained(program, kind, count)})
        elif command == "wait":
            waited = [await _waited(program, "noop") for _ in range(_WARM + int(arguments[0]))]
            _say({"seconds": waited[_WARM:]})
        elif command == "reset":
            await program.reset()
            _say({})
        else:
            sys.exit(f"unknown command: {command}")
    finally:
        await program.close()


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


async def _called(program: Program, clients: int, seconds: float) -> float:
    await asyncio.gather(*(program.send("noop") for _ in range(clients)))  # connections are made
    done, began = 0, time.perf_counter()

    async def repeat() -> None:
        nonlocal done
        while time.perf_counter() < began + seconds:
            await program.send("noop")
            done += 1

    await asyncio.gather(*(repeat() for _ in range(clients)))
    return done / (time.perf_counter() - began)


async def _called_in_threads(program: BlockingProgram, clients: int, seconds: float) -> float:
    done, began = [0] * clients, 0.0

    def start() -> None:
        nonlocal began
        began = time.perf_counter()

    all_connected = threading.Barrier(clients, start)

    def repeat(index: int) -> None:
        program.send_now("noop")
        all_connected.wait(30)
        while time.perf_counter() < began + seconds:
            program.send_now("noop")
            done[index] += 1

    threads = [threading.Thread(target=repeat, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


async def _filled(program: Program, kind: str, count: int) -> list[Any]:
    if program.is_blocking:
        return [await program.send(kind) for _ in range(count)]
    sent: list[Any] = []
    while len(sent) < count:
        sent += await asyncio.gather(*(program.send(kind) for _ in range(min(_FILL_AT_ONCE, count - len(sent)))))
    return sent


async def _warmed(program: Program, counts: Mapping[str, int]) -> None:
    for kind, count in counts.items():
        await _ended(program, [program.id_of(each) for each in await _filled(program, kind, min(_WARM_DRAIN, count))])
    _say({"warm": True})


async def _drained(program: Program, kind: str, count: int) -> float:
    """Jobs per second, from the moment workers are let go to the end of the last one."""
    sys.stdin.readline()  # they stand still
    sent = await _filled(program, kind, count)
    ids = [program.id_of(each) for each in sent]
    _say({"filled": count})
    sys.stdin.readline()  # they are let go
    began = time.perf_counter()
    await _ended(program, ids)
    seconds = time.perf_counter() - began
    for each in (sent[0], sent[-1]):
        await program.wait(each)  # both ended well
    return count / seconds


async def _ended(program: Program, ids: Sequence[str]) -> None:
    left, deadline = list(ids), time.perf_counter() + _DRAIN_SECONDS_MAX
    while left:
        window = left[:_LOOK_AT]
        ended = await program.ended(window)
        left[:_LOOK_AT] = [each for each, has_ended in zip(window, ended, strict=True) if not has_ended]
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{len(left)} of {len(ids)} jobs have no end after {_DRAIN_SECONDS_MAX:g} s")
        if not all(ended):
            await asyncio.sleep(_LOOK_SECONDS)


async def _waited(program: Program, kind: str) -> float:
    began = time.perf_counter()
    await program.wait(await program.send(kind))
    return time.perf_counter() - began
