"""The scenario of `pyoco-server cluster demo --once`: runs continue while a node is killed, and each completes once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pyoco_server.client.aio import AsyncPyocoHttpClient
from pyoco_server.config import NatsBackendConfig, grid_from_env
from pyoco_server.core.replicas import StreamReplicas
from pyoco_server.doors.cli.cluster_plan import REPLICAS
from pyoco_server.errors import Unavailable
from pyoco_server.loops.supervisor import Supervisor
from pyoco_server.ports.replicas.port import Replicas
from pyoco_server.wiring.operating import open_replicas

__all__ = ["Stage", "tell_story"]

_FIRST_RUNS = 10
_PROGRAMS = 2
#: Submitted after the kill, while the node is down.
_LATER_RUNS = 20
_PAUSE_SECONDS = 0.1
#: How long a call is retried under the same key. Much longer than an election (4 to 9 s), because a busy machine takes
#: longer and a failed call ends the demo.
_RETRY_SECONDS = 120.0
_WAIT_SECONDS = 180.0


@dataclass(frozen=True)
class Stage:
    config: NatsBackendConfig
    nats_url: str
    #: The URLs of the gateways.
    addresses: Sequence[str]
    supervisor: Supervisor
    say: Callable[[str], None]


@dataclass
class _Submissions:
    """The accepted run ids by idempotency key, and the longest response time."""

    run_ids: dict[str, str] = field(default_factory=dict)
    longest_seconds: float = 0.0

    async def submit(self, client: AsyncPyocoHttpClient, key: str) -> None:
        began = time.monotonic()
        accepted = await client.submit_run("hello", {"name": key}, idempotency_key=key)
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
        self.run_ids[key] = accepted["run_id"]


async def tell_story(stage: Stage) -> int:
    """Return 0 if every run completed exactly once, else 1. Raises PyocoError if a gateway cannot be used."""
    say = stage.say
    first, second = (
        AsyncPyocoHttpClient(address, retries=1_000, retry_seconds=_RETRY_SECONDS) for address in stage.addresses
    )
    config = NatsBackendConfig.from_env(nats_url=stage.nats_url)
    async with first, second, open_replicas(config, grid=grid_from_env()) as replicas:
        await _until(
            replicas, lambda all_: all(each.is_complete(REPLICAS) for each in all_), "three copies of everything"
        )
        made = _Submissions()
        mark = f"{time.time():.0f}"
        say(f"{_FIRST_RUNS} runs and {_PROGRAMS} programs through {stage.addresses[0]}")
        for number in range(_FIRST_RUNS):
            await made.submit(first, f"demo-{mark}-{number}")
        programs = [(await first.submit_job("calcA", ["one"]))["run_id"] for _ in range(_PROGRAMS)]
        is_good = await _all_end(second, [*made.run_ids.values(), *programs], say)
        later = _Submissions()
        await _kill_and_go_on(stage, replicas, second, later, mark)
        is_good &= await _all_end(first, list(later.run_ids.values()), say)
        is_good &= await _are_once(second, made.run_ids | later.run_ids, say)
    say("all runs were completed, each once" if is_good else "NOT all runs were completed once; see above")
    return 0 if is_good else 1


async def _kill_and_go_on(
    stage: Stage, replicas: Replicas, client: AsyncPyocoHttpClient, made: _Submissions, mark: str
) -> None:
    say, work = stage.say, stage.config.work_stream
    leader = (await _until(replicas, lambda all_: all_[0].leader != "", "a leader of the queue", [work]))[0].leader
    pid = stage.supervisor.pids()[leader]
    say(f"kill -9 {pid}: {leader}, which leads the queue; continuing through {stage.addresses[1]}")
    killed_at = time.monotonic()
    async with stage.supervisor.away(leader), _submitting(client, made, f"demo-{mark}-later"):
        found = await _until(replicas, lambda all_: all_[0].leader not in ("", leader), "another leader", [work])
        say(f"  {found[0].leader} leads the queue after {time.monotonic() - killed_at:.1f} s")
        await _reached(made, _LATER_RUNS)
        count, longest = len(made.run_ids), made.longest_seconds
        say(f"  {count} runs accepted without {leader}; the longest answer took {longest:.1f} s")
        back_at = time.monotonic()
    await _until(replicas, lambda all_: all(each.is_complete(REPLICAS) for each in all_), "three copies again")
    say(f"  {leader} is up again and has caught up after {time.monotonic() - back_at:.1f} s")


@asynccontextmanager
async def _submitting(client: AsyncPyocoHttpClient, made: _Submissions, key: str) -> AsyncIterator[None]:
    """Submit runs one after the other while the block executes."""

    async def submit() -> None:
        number = 0
        while True:
            await made.submit(client, f"{key}-{number}")
            number += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    task = asyncio.create_task(submit())
    try:
        yield
    finally:
        task.cancel()
        results = await asyncio.gather(task, return_exceptions=True)
    if not isinstance(results[0], asyncio.CancelledError) and results[0] is not None:
        raise results[0]


async def _reached(made: _Submissions, count: int) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while len(made.run_ids) < count:
        if time.monotonic() > deadline:
            raise Unavailable(f"{len(made.run_ids)} runs were accepted while a node was away, and {count} should be")
        await asyncio.sleep(_PAUSE_SECONDS)


async def _all_end(client: AsyncPyocoHttpClient, run_ids: Sequence[str], say: Callable[[str], None]) -> bool:
    ends = await asyncio.gather(*(client.wait_run(run_id, _WAIT_SECONDS) for run_id in run_ids))
    counts = {status: sum(end["status"] == status for end in ends) for status in {end["status"] for end in ends}}
    say("  " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    return counts.keys() == {"COMPLETED"}


async def _are_once(client: AsyncPyocoHttpClient, run_ids: dict[str, str], say: Callable[[str], None]) -> bool:
    """Return whether resubmitting the same keys finds the same runs, and no two keys share a run."""
    again = _Submissions()
    for key in run_ids:
        await again.submit(client, key)
    is_once = again.run_ids == run_ids and len(set(run_ids.values())) == len(run_ids)
    say(f"  {len(run_ids)} keys sent again, through the other gateway: {'the same runs' if is_once else 'OTHER runs'}")
    return is_once


async def _read_replicas(replicas: Replicas, names: Sequence[str] | None = None) -> list[StreamReplicas]:
    """Return the replicas of the streams that exist. Raises Unavailable."""
    found = await asyncio.gather(*(replicas.look(name) for name in names or replicas.names))
    return [each for each in found if each is not None]


async def _until(
    replicas: Replicas, is_so: Callable[[list[StreamReplicas]], bool], what: str, names: Sequence[str] | None = None
) -> list[StreamReplicas]:
    """Poll until the replicas meet the condition, and return them. Raises Unavailable on a timeout.

    Errors are retried: the connection may be to the killed node, and no other node responds during an election.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        last: Unavailable | None = None
        try:
            found = await _read_replicas(replicas, names)
            if found and is_so(found):
                return found
        except Unavailable as error:
            last = error
        if time.monotonic() > deadline:
            raise Unavailable(f"timed out after {_WAIT_SECONDS:.0f} s while waiting for {what}") from last
        await asyncio.sleep(_PAUSE_SECONDS)
