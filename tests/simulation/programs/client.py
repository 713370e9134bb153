"""Clients of programs: each submits jobs, repeats and cancels them, sets caps and requeues dead letters at random, and
reports every answer to the judge."""

from __future__ import annotations

import asyncio
import hashlib
import random
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.programs import set_cap as actions
from pyoco_server.actions.programs.submit import Inline, Submitted
from pyoco_server.actions.programs.submit_once import Key, submit_job_once
from pyoco_server.actions.redrive import redrive
from pyoco_server.actions.rerun import UNCHANGED, rerun
from pyoco_server.actions.submit import Accepted
from pyoco_server.core.programs.job import InputFile, JobAsk, fingerprint
from pyoco_server.core.run import Caller
from pyoco_server.errors import PyocoError
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.slots.port import Cap
from simulation.deployment import Deployment, NoAnswer
from simulation.programs.executor import EXECS, MISSING, Behaviour
from simulation.programs.judge import ProgramJudge

__all__ = ["ProgramClient"]

_NOBODY = Caller()
_GROUP = "default"
#: Shared by all simulated clients, so that they compete for the same caps.
_CLIENT_IDS = ("alice", "bob")
#: Above 16 KiB inputs become an object.
_FILE_BYTES = (0, 0, 0, 200, 20_000)
_SECONDS = (0.0, 0.01, 0.3, 0.3, 1.0, 2.0, 6.0, 12.0, 25.0)
#: None: no policy.
_POLICIES: tuple[dict[str, Any] | None, ...] = (
    None,
    None,
    {"tries": 2, "delay": 0.5},
    {"tries": 3, "delay": 3.0, "backoff": "fixed", "never_on": ["signal"]},
)
_ENDS = ("complete",) * 5 + ("fail", "signal", "missing", "broken", "flaky")


@dataclass
class ProgramClient:
    deployment: Deployment
    judge: ProgramJudge
    dice: random.Random
    name: str
    count: int = 0
    mine: list[str] = field(default_factory=list)

    async def work(self, until: float) -> None:
        acts = [self.submit] * 5 + [self.submit_repeatedly] * 3 + [self.submit_with_key, self.burst, self.cancel]
        acts += [self.cancel, self.rerun, self.requeue, self.read, self.set_cap]
        loop = self.deployment.loop
        if self.dice.random() < 0.7:
            await self.set_cap()
        while loop.elapsed() < until:
            await asyncio.sleep(self.dice.expovariate(0.25))
            await self.dice.choice(acts)()

    # Submissions.

    def _job(self) -> tuple[JobAsk, Inline]:
        self.count += 1
        behaviour = Behaviour(
            f"{self.name}-{self.count}",
            seconds=self.dice.choice(_SECONDS),
            end=self.dice.choice(_ENDS),
            ignores_term=self.dice.random() < 0.2,
            stdout_bytes=self.dice.choice((0, 0, 10, 9_000)),
            archive_bytes=self.dice.choice((0, 0, 100)),
            archive_seconds=self.dice.choice((0.0, 0.0, 0.0, 1.0, 25.0)),
        )
        data = bytes(self.dice.choice(_FILE_BYTES))
        files = {"input.bin": data} if data else {}
        ask = JobAsk(
            job_id=str(uuid.UUID(int=self.dice.getrandbits(128), version=4)),
            group=_GROUP,
            client_id=self.dice.choice(_CLIENT_IDS),
            exec_name=MISSING if behaviour.end == "missing" else self.dice.choice(EXECS),
            args=behaviour.args(),
            retry=self.dice.choice(_POLICIES),
            files=tuple(InputFile(name, len(each), hashlib.sha256(each).hexdigest()) for name, each in files.items()),
        )
        return ask, Inline(files)

    async def _submit(self, ask: JobAsk, content: Inline, key: Key | None = None) -> Submitted | PyocoError | NoAnswer:
        answer = await self.deployment.ask(
            lambda backend: submit_job_once(backend, _NOBODY, ask, content, key), self.dice
        )
        if isinstance(answer, Submitted):
            self.mine.append(answer.run.run_id)
            self.judge.accept(answer.run, fingerprint(ask), None if key is None else key.text)
        return answer

    async def submit(self) -> None:
        ask, content = self._job()
        await self._submit(ask, content)

    async def submit_repeatedly(self) -> None:
        """The same job until it is accepted, sometimes twice at the same time; then another job under its id."""
        ask, content = self._job()
        for _ in range(6):
            answers = await asyncio.gather(*(self._submit(ask, content) for _ in range(self.dice.choice((1, 1, 2)))))
            if any(isinstance(each, Submitted) for each in answers) and self.dice.random() < 0.5:
                break
            await asyncio.sleep(self.dice.expovariate(0.5))
        if self.dice.random() < 0.3:
            await self._submit(replace(ask, args=Behaviour("another job").args()), content)

    async def submit_with_key(self) -> None:
        """An idempotency key with a fresh job id for each try."""
        ask, content = self._job()
        key = Key(f"{self.name}-{self.count}", names_job=False)
        for _ in range(4):
            tried = replace(ask, job_id=str(uuid.UUID(int=self.dice.getrandbits(128), version=4)))
            if isinstance(await self._submit(tried, content, key), Submitted) and self.dice.random() < 0.5:
                return
            await asyncio.sleep(self.dice.expovariate(0.5))

    async def burst(self) -> None:
        """More jobs of one client than its cap allows."""
        client_id = self.dice.choice(_CLIENT_IDS)
        jobs = [self._job() for _ in range(self.dice.randrange(2, 6))]
        await asyncio.gather(*(self._submit(replace(ask, client_id=client_id), content) for ask, content in jobs))

    async def rerun(self) -> None:
        if self.mine:
            run_id = self.dice.choice(self.mine)
            answer = await self.deployment.ask(lambda backend: rerun(backend, _NOBODY, run_id, UNCHANGED), self.dice)
            self._note(answer)

    async def requeue(self) -> None:
        letters = self.judge.letter_ids
        if letters:
            letter_id = str(self.dice.choice(letters))
            answer = await self.deployment.ask(lambda backend: redrive(backend, _NOBODY, letter_id), self.dice)
            self._note(answer)

    def _note(self, answer: Accepted | PyocoError | NoAnswer) -> None:
        if isinstance(answer, Accepted):
            run = answer.stored.run
            self.mine.append(run.run_id)
            self.judge.accept(run, run.program.fingerprint if run.program is not None else "", None)

    # Everything else.

    async def cancel(self) -> None:
        if self.mine:
            run_id = self.dice.choice(self.mine[-6:])
            await self.deployment.ask(lambda backend: cancel(backend, _NOBODY, run_id, "simulated"), self.dice)

    async def read(self) -> None:
        if self.mine:
            run_id = self.dice.choice(self.mine)
            found = await self.deployment.ask(lambda backend: backend.runs.find(run_id), self.dice)
            if not isinstance(found, Stored | PyocoError | NoAnswer):
                self.judge.blame("an accepted run cannot be read", run_id)

    async def set_cap(self) -> None:
        """Changed once, or changed and put back at once."""
        client_id = self.dice.choice(_CLIENT_IDS)
        cap, other = self.dice.choice((1, 1, 2, 3)), self.dice.choice((1, 2, 3))
        for each in self.dice.choice(((cap,), (cap, other, cap))):
            await self._set_cap(client_id, each)

    async def _set_cap(self, client_id: str, cap: int) -> None:
        since = self.deployment.loop.elapsed()
        answer = await self.deployment.ask(
            lambda backend: actions.set_cap(backend, _GROUP, client_id, cap, "http"), self.dice
        )
        if isinstance(answer, Cap):
            self.judge.slots.told(f"{_GROUP}.{client_id}", answer.cap, since)
