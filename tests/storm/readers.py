"""Those who look: at their own runs, all the time and every way there is, and at the other tenant's, who must not exist
for them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from types import TracebackType
from typing import Any, Self

import httpx

from pyoco_server.http_client import AsyncPyocoHttpClient
from storm.book import ENDS, Accepted, Book, Kind
from storm.recorder import Recorder
from storm.site import StormSite, Tenant

__all__ = ["Readers"]

_LOOK_SECONDS = 0.4
_AT_ONCE = 10
_WATCHERS_MAX = 6
_ANSWER_SECONDS_MAX = 25.0
#: What a tenant may ask of a run of its own. A stranger's is not there.
_SPIED = (
    ("GET", "/runs/{}"),
    ("GET", "/runs/{}/tasks"),
    ("GET", "/runs/{}/watch"),
    ("GET", "/runs/{}/artifacts"),
    ("POST", "/runs/{}/cancel"),
    ("POST", "/runs/{}/rerun"),
    ("GET", "/v1/runs/{}"),
    ("GET", "/v1/runs/{}/envelope"),
)
_PASSING = frozenset({429, 503})


class Readers:
    """For each tenant: one reader, one lister, one watcher and one spy."""

    def __init__(self, site: StormSite, book: Book, recorder: Recorder, seed: int) -> None:
        self._site, self._book, self._recorder, self._seed = site, book, recorder, seed
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def __aenter__(self) -> Self:
        for tenant in self._site.tenants:
            self._clients[tenant.name] = httpx.AsyncClient(
                timeout=_ANSWER_SECONDS_MAX, headers=tenant.headers, trust_env=False
            )
            for work in (self._read, self._list, self._watch, self._spy):
                dice = random.Random(f"{self._seed} {tenant.name} {work.__name__}")
                self._tasks.append(asyncio.create_task(work(tenant, dice), name=f"{tenant.name} {work.__name__}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        done = await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.aclose()
        for result in done:
            if isinstance(result, Exception) and error is None:
                raise result

    async def look(self, run: Accepted, address: str) -> str | None:
        """The state of a run, as that gateway tells it. None: it did not."""
        paths = ["/runs/{}", "/v1/runs/{}"] if run.kind is Kind.PACK else ["/runs/{}"]
        found = None
        for path in paths:
            began = time.monotonic()
            answer = await self._ask(run.tenant, "GET", f"{address}{path.format(run.run_id)}")
            if answer is None or answer.status_code in _PASSING:
                continue
            is_hint = run.kind is Kind.PACK and path == "/runs/{}"  # shown a moment later than the ledger knows it
            if answer.status_code == 404 and is_hint:
                continue
            if answer.status_code != 200:
                self._book.complain(f"GET {path} of {run.kind} {run.run_id}: {answer.status_code} {answer.text[:200]}")
                continue
            found = str(answer.json()["status"])
            if run.kind is not Kind.PACK:
                self._recorder.note_read(run.run_id, answer.json(), began)
            way = "hint" if is_hint else ("priced" if run.kind is Kind.PACK else "read")
            self._book.saw(run.run_id, found, way, began)
        return found

    async def _read(self, tenant: Tenant, dice: random.Random) -> None:
        while True:
            open_now = self._book.unfinished(tenant.name)
            chosen = open_now if len(open_now) <= _AT_ONCE else dice.sample(open_now, _AT_ONCE)
            own = [run for run in self._book.runs.values() if run.tenant == tenant.name and run.ended_at is not None]
            chosen += dice.sample(own, min(2, len(own)))  # an end stays
            await asyncio.gather(*(self.look(run, dice.choice(self._site.addresses)) for run in chosen))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _list(self, tenant: Tenant, dice: random.Random) -> None:
        """Lists come from an index that may be behind; what they show is the tenant's own, and never a second end."""
        while True:
            await asyncio.sleep(dice.uniform(1.0, 3.0))
            began = time.monotonic()
            answer = await self._ask(tenant.name, "GET", f"{dice.choice(self._site.addresses)}/runs?limit=200")
            if answer is None or answer.status_code in _PASSING:
                continue
            if answer.status_code != 200:
                self._book.complain(f"GET /runs: {answer.status_code} {answer.text[:200]}")
                continue
            for shown in answer.json():
                run = self._book.runs.get(shown["run_id"])
                if run is not None and run.tenant != tenant.name:
                    self._book.complain(f"{tenant.name}'s list shows {run.tenant}'s {run.run_id}")
                self._book.saw(shown["run_id"], str(shown["status"]), "list", began)

    async def _watch(self, tenant: Tenant, dice: random.Random) -> None:
        """Some runs, from early on to their end."""
        watching: set[asyncio.Task[None]] = set()
        known: set[str] = set()
        try:
            while True:
                await asyncio.sleep(dice.uniform(0.2, 0.8))
                for task in [each for each in watching if each.done()]:
                    watching.remove(task)
                    task.result()
                new = [run for run in self._book.unfinished(tenant.name) if run.run_id not in known]
                if len(watching) < _WATCHERS_MAX and new:
                    run = dice.choice(new)
                    known.add(run.run_id)
                    watching.add(asyncio.create_task(self._watch_one(tenant, run, dice.choice(self._site.addresses))))
        finally:
            for task in watching:
                task.cancel()
            for ended in await asyncio.gather(*watching, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended

    async def _watch_one(self, tenant: Tenant, run: Accepted, address: str) -> None:
        """What it has told counts, also when it breaks."""
        states: list[str | None] = []
        try:
            async with (
                AsyncPyocoHttpClient(address, tenant.key, timeout=20.0, retries=1) as client,
                contextlib.aclosing(client.watch_run(run.run_id, timeout_sec=60.0)) as events,
            ):
                async for event in events:
                    states.append(_status_of(event))  # noqa: PERF401 - one by one: what was told stays told
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            is_hint = status == 404 and run.kind is Kind.PACK  # shown a moment later than the ledger knows it
            if status not in _PASSING and not is_hint:
                self._book.complain(f"a watch of {run.kind} {run.run_id}: {status} {error.response.text[:200]}")
        except (httpx.HTTPError, TimeoutError):
            pass
        finally:
            self._heard(run, states)

    def _heard(self, run: Accepted, states: list[str | None]) -> None:
        ends = [state for state in states if state in ENDS]
        for state in ends:
            self._book.saw(run.run_id, str(state), "watch", time.monotonic())
        after = list(itertools.dropwhile(lambda state: state not in ends, states))
        if any(state not in {*ends[:1], None} for state in after):
            self._book.complain(f"a watch of {run.kind} {run.run_id} told {states}")

    async def _spy(self, tenant: Tenant, dice: random.Random) -> None:
        while True:
            await asyncio.sleep(dice.uniform(0.2, 0.8))
            others = [run for run in self._book.runs.values() if run.tenant != tenant.name]
            if not others:
                continue
            run, (method, path) = dice.choice(others), dice.choice(_SPIED)
            address = dice.choice(self._site.addresses)
            body: dict[str, Any] = {"json": {}} if method == "POST" else {}
            answer = await self._ask(tenant.name, method, f"{address}{path.format(run.run_id)}", **body)
            if answer is None or answer.status_code in _PASSING:
                continue
            self._book.spied[tenant.name] += 1
            if answer.status_code != 404:
                told = f"{answer.status_code} {answer.text[:200]}"
                self._book.complain(f"{tenant.name} asked {method} {path} of {run.tenant}'s {run.kind}: {told}")

    async def _ask(self, tenant: str, method: str, url: str, **body: Any) -> httpx.Response | None:
        try:
            return await self._clients[tenant].request(method, url, **body)
        except httpx.TransportError:
            return None


def _status_of(event: Any) -> str | None:
    snapshot = event.get("snapshot") or event.get("run") or {}
    status = snapshot.get("status")
    return None if status is None else str(status)
