"""The ledger of promises: what a gateway has answered under load, what became of it, and the judgement on both."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from pyoco_server.core.run import Run
from pyoco_server.core.states import FLOW_MOVES, TERMINAL, RunState
from pyoco_server.ports.runs.port import Removed, Stored
from support.backends import dead_letters
from support.chaos import RECOVERY_SECONDS, STALE_SECONDS, Eyes
from support.gateways import error
from support.waiting import eventually

__all__ = ["History", "Load", "Verdict", "check_recovery", "judge", "loaded", "may_follow"]

#: A gateway without NATS has 5 s for its 503; one that waits for an election 15 s (DESIGN 9.16). Four times that, for a
#: busy machine.
_ANSWER_SECONDS_MAX = 60.0


@dataclass
class Load:
    """Clients that submit, and note every answer. Every so often one cancels what it has just submitted.

    Every second submission goes out under an idempotency key, and again under the same key until it is accepted.
    """

    address: str
    note: Path
    #: Shortest and longest run.
    seconds: tuple[float, float] = (0.0, 0.0)
    #: Between two submissions of one client.
    pause: float = 0.02
    cancel_every: int = 0
    seed: int = 1
    #: Run id to token, for each answer of 200.
    accepted: dict[str, str] = field(default_factory=dict)
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)
    unanswered: int = 0
    #: Submissions that were sent again under their key.
    repeated: int = 0
    cancelled: set[str] = field(default_factory=set)
    slowest: float = 0.0
    #: Answers that no client should ever get.
    wrong: list[str] = field(default_factory=list)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, client: httpx.AsyncClient, name: int) -> None:
        chance = random.Random(f"{self.seed} {name}")
        for count in itertools.count(1):
            if self._stopping.is_set():
                return
            seconds = chance.uniform(*self.seconds)
            run_id = await self._submit(client, f"{name}-{count}", seconds, insist=count % 2 == 0)
            if run_id is not None and self.cancel_every and count % self.cancel_every == 0:
                self.cancelled.add(run_id)
                await asyncio.sleep(chance.uniform(0.0, 2 * seconds))  # before it begins, or just before it ends
                await self._ask(client, f"/runs/{run_id}/cancel", {"reason": "chaos"})
            await asyncio.sleep(self.pause)

    async def pile(self, count: int, seconds: float, *, running: int = 0) -> None:
        """Submits runs that take so long. Returns once so many of them execute."""
        tokens = {f"pile-{number}" for number in range(count)}
        async with httpx.AsyncClient(timeout=_ANSWER_SECONDS_MAX) as client:
            await asyncio.gather(*(self._submit(client, token, seconds, insist=True) for token in tokens))
        await eventually(lambda: len(tokens & _read(self.note)[0].keys()) >= running, RECOVERY_SECONDS)

    async def _submit(self, client: httpx.AsyncClient, token: str, seconds: float, *, insist: bool) -> str | None:
        params = {"path": str(self.note), "token": token, "seconds": seconds}
        body = {"flow_name": "trace", "params": params}
        headers = {"Idempotency-Key": token} if insist else {}
        until = time.monotonic() + RECOVERY_SECONDS
        answer = await self._ask(client, "/runs", body, **headers)
        while answer is None and insist and time.monotonic() < until:
            await asyncio.sleep(self.pause)
            answer = await self._ask(client, "/runs", body, **headers)
            self.repeated += 1
        if answer is None:
            return None
        self.accepted[answer["run_id"]] = token
        return str(answer["run_id"])

    async def _ask(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str
    ) -> dict[str, Any] | None:
        began = time.monotonic()
        try:
            answer = await client.post(f"{self.address}{path}", json=body, headers=headers)
        except httpx.HTTPError:
            self.unanswered += 1
            await asyncio.sleep(0.05)  # as a client does if there is no server
            return None
        self.slowest = max(self.slowest, time.monotonic() - began)
        document: dict[str, Any] = answer.json()
        if answer.status_code == 200:
            return document
        self.refused[answer.status_code, document.get("err_id", "")] += 1
        if (answer.status_code, document) != (503, error(3, "nats unavailable")):
            self.wrong.append(f"POST {path}: {answer.status_code} {answer.text}")
        return None

    async def until(self, more: int) -> None:
        """Returns once so many more submissions have been accepted."""
        had = len(self.accepted)
        await eventually(lambda: len(self.accepted) >= had + more, RECOVERY_SECONDS)

    def stop(self) -> None:
        self._stopping.set()

    def __str__(self) -> str:
        no = dict(self.refused)
        return (
            f"{len(self.accepted)} accepted, {no} refused, {self.unanswered} unanswered, {self.repeated} sent again, "
            f"slowest {self.slowest:.1f} s"
        )


@asynccontextmanager
async def loaded(load: Load, clients: int = 4) -> AsyncIterator[Load]:
    """Load from here on; every answer has been noted when this ends."""
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(timeout=_ANSWER_SECONDS_MAX, limits=limits) as client:
        tasks = [asyncio.create_task(load.run(client, name)) for name in range(clients)]
        try:
            yield load
        finally:
            load.stop()
            await asyncio.gather(*tasks)


class History:
    """Every state of every run that the store has shown while this was open, oldest first."""

    def __init__(self, eyes: Eyes) -> None:
        self._eyes = eyes
        self.seen: defaultdict[str, list[Run]] = defaultdict(list)
        self.removed: set[str] = set()

    async def __aenter__(self) -> History:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _follow(self) -> None:
        async with aclosing(self._eyes.backend.runs.changes()) as changes:
            async for change in changes:
                for item in change.items:
                    if isinstance(item, Removed):
                        self.removed.add(item.run_id)
                    else:
                        self.seen[item.run.run_id].append(item.run)

    @property
    def unfinished(self) -> list[Run]:
        """Everything that is stored and has no end, whether its submission was answered or not."""
        return [
            states[-1]
            for run_id, states in self.seen.items()
            if run_id not in self.removed and not states[-1].is_terminal
        ]


_UNFINISHED = sorted(frozenset(RunState) - TERMINAL)
_STEPS: frozenset[tuple[RunState, RunState]] = frozenset(
    (source, target) for sources, target in FLOW_MOVES.values() for source in sources
)


def _reachable(steps: frozenset[tuple[RunState, RunState]]) -> frozenset[tuple[RunState, RunState]]:
    grown = steps | {(a, d) for a, b in steps for c, d in steps if b is c}
    return grown if grown == steps else _reachable(grown)


#: For a history that shows the newest state only: what may have happened in between.
_WALKS = _reachable(_STEPS)
#: A sign of life, a hand-back, a note on an overdue cancel, or a submission that is repeated: none changes the status.
_LASTING = frozenset({RunState.PENDING, RunState.RUNNING, RunState.CANCELLING})


def may_follow(before: Run, after: Run, *, whole_history: bool = True) -> bool:
    """Whether the table of moves allows `after` to be written over `before` (FLOW-12 to FLOW-20)."""
    step = (before.status, after.status)
    if before.is_terminal:
        return False
    if not whole_history:
        return (step in _WALKS or step[0] is step[1]) and after.attempt >= before.attempt
    if after.attempt == before.attempt + 1:
        return step in _STEPS and step == (before.status, RunState.RUNNING)
    if after.attempt != before.attempt:
        return False
    same_owner = after.attempt_id == before.attempt_id or after.attempt_id is None
    if before.status is after.status:
        return after.status in _LASTING and same_owner
    return step in _STEPS and same_owner and after.status is not RunState.RUNNING


@dataclass(frozen=True)
class Verdict:
    """Statistics of a storm."""

    #: The last state of each accepted run.
    ends: dict[str, Run]
    #: Token to how often its run was begun.
    begun: Counter[str]
    #: How long after the storm everything had ended.
    seconds: float

    def __str__(self) -> str:
        statuses = Counter(str(run.status) for run in self.ends.values())
        again = sum(1 for count in self.begun.values() if count > 1)
        return f"{dict(statuses)}, {again} begun again, quiet after {self.seconds:.1f} s"


async def judge(eyes: Eyes, load: Load, history: History, *, whole_history: bool = True) -> Verdict:
    """After the storm: waits until everything has ended, and fails when a promise was broken.

    No accepted run is lost, each has one end and nothing after it, every step is one of the table, nothing is stuck,
    what had to run has run, dead letters tell the truth, and no answer was other than yes or "NATS is not available".
    """
    print(load)  # pytest shows it when something fails
    assert load.wrong == []
    assert load.slowest < _ANSWER_SECONDS_MAX
    began = time.monotonic()
    await eventually(lambda: _is_quiet(eyes, load, history), RECOVERY_SECONDS)
    seconds = time.monotonic() - began
    for run_id, states in history.seen.items():
        _check_walk(run_id, states, whole_history=whole_history)
    ends = {}
    for run_id in load.accepted:
        found = await eyes.backend.runs.find(run_id)
        assert isinstance(found, Stored), f"accepted run {run_id} is lost: {found}"
        assert found.run == history.seen[run_id][-1], "the store and its history disagree"
        ends[run_id] = found.run
    await _check_letters(eyes, history)
    verdict = Verdict(ends, _check_executions(load, ends), seconds)
    print(verdict)
    return verdict


async def _check_letters(eyes: Eyes, history: History) -> None:
    """Each failed run has one dead letter, and each dead letter a failed run."""
    told = [letter["body"]["run_id"] for letter in await dead_letters(eyes.link, eyes.backend.config)]
    assert len(told) == len(set(told))
    assert {history.seen[run_id][-1].status for run_id in told} <= {RunState.FAILED}


async def _is_quiet(eyes: Eyes, load: Load, history: History) -> bool:
    if not all(history.seen[run_id] and history.seen[run_id][-1].is_terminal for run_id in load.accepted):
        return False
    return not history.unfinished and await eyes.jobs() == 0


def _check_walk(run_id: str, states: list[Run], *, whole_history: bool) -> None:
    shown = [(str(run.status), run.attempt) for run in states]
    if whole_history:
        assert states[0].status is RunState.PENDING, (run_id, shown)  # FLOW-12
    for before, after in itertools.pairwise(states):
        assert may_follow(before, after, whole_history=whole_history), (run_id, shown)
    assert sum(run.is_terminal for run in states) <= 1, (run_id, shown)  # FLOW-19


def _check_executions(load: Load, ends: dict[str, Run]) -> Counter[str]:
    """Each accepted run ended as it should, with as many executions as attempts at most, and never two at once. They
    are counted by what was asked for: under one idempotency key that is one run, however often it was submitted."""
    began, ended = _read(load.note)
    for run_id, token in load.accepted.items():
        run = ends[run_id]
        times = began[token]
        if run_id not in load.cancelled:
            assert run.status is RunState.COMPLETED, run
        assert run.status in {RunState.COMPLETED, RunState.CANCELLED}, run
        assert len(times) <= run.attempt, (run, times)
        if run.status is RunState.COMPLETED:
            assert ended[token], f"{run} is said to have completed and never ran"
        for one, two in itertools.pairwise(times):
            done = [moment for moment in ended[token] if one <= moment <= two]
            # A killed worker reported nothing; its successor waited until that was certain.
            assert done or two - one > STALE_SECONDS - 1.0, (run, times, ended[token])
    return Counter({token: len(times) for token, times in began.items()})


def _read(note: Path) -> tuple[defaultdict[str, list[float]], defaultdict[str, list[float]]]:
    began: defaultdict[str, list[float]] = defaultdict(list)
    ended: defaultdict[str, list[float]] = defaultdict(list)
    for line in note.read_text().splitlines() if note.exists() else ():
        word, token, moment, _ = line.split()
        (began if word == "began" else ended)[token].append(float(moment))
    return began, ended


async def check_recovery(address: str, note: Path) -> None:
    """Without help: what is submitted now completes, and no list shows anything that has not ended."""
    async with httpx.AsyncClient(timeout=_ANSWER_SECONDS_MAX, base_url=address) as client:
        params = {"path": str(note), "token": "afterwards"}
        answer = await client.post("/runs", json={"flow_name": "trace", "params": params})
        assert answer.status_code == 200, answer.text
        run_id = answer.json()["run_id"]

        async def completed() -> bool:
            return bool((await client.get(f"/runs/{run_id}")).json().get("status") == "COMPLETED")

        async def listed() -> bool:
            lists = [(await client.get("/runs", params={"status": status})).json() for status in _UNFINISHED]
            return lists == [[]] * len(lists)

        await eventually(completed, RECOVERY_SECONDS)
        await eventually(listed, RECOVERY_SECONDS)
