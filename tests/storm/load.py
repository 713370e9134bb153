"""Callers of all three kinds, for two tenants at once, with our own client and with plain HTTP; whatever is not known
to have been accepted or refused is sent again under the same key."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from pyoco_server.actions.priced.credit import credit
from pyoco_server.http_client import AsyncPyocoHttpClient
from storm.book import ENDS, Accepted, Book, Kind
from storm.frames import call_door
from storm.site import StormSite, Tenant
from support.priced.processes import BODY

__all__ = ["Load", "loaded"]

_COMPLETED = frozenset({"COMPLETED"})
_FAILED = frozenset({"FAILED"})
#: Or what it was, if the cancel came too late.
_CANCELLED = frozenset({"COMPLETED", "CANCELLED"})
#: A gateway that waits for an election has 15 s; a frozen one is given up before it wakes.
_ANSWER_SECONDS_MAX = 25.0
_INSIST_SECONDS_MAX = 300.0
#: Of one tenant and kind, before its callers wait for the others to end.
_UNFINISHED_MAX = 8
_CREDIT_MICROS = 500_000

#: Status and document; None: no answer, or not in time.
Answer = tuple[int, dict[str, Any]] | None
#: One try, at that address, under that key.
Send = Callable[[str, str], Awaitable[Answer]]


@dataclass
class Load:
    site: StormSite
    seed: int
    book: Book
    #: Between two submissions of one caller, at most.
    pause: float = 1.2
    credited: dict[str, int] = field(default_factory=dict)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _plain: dict[str, httpx.AsyncClient] = field(default_factory=dict)
    _ours: dict[tuple[str, str], AsyncPyocoHttpClient] = field(default_factory=dict)

    def stop(self) -> None:
        self.stopping.set()

    # One caller of each kind, each way.

    async def call(self, tenant: Tenant, kind: Kind, way: str) -> None:
        """Until the load stops."""
        dice = random.Random(f"{self.seed} {tenant.name} {kind} {way}")
        ask = {Kind.FLOW: self._flow, Kind.PACK: self._pack, Kind.PROGRAM: self._program}[kind]
        number = 0
        while not self.stopping.is_set():
            if len(self.book.unfinished(tenant.name, kind)) < _UNFINISHED_MAX:
                number += 1
                await ask(tenant, way, f"{kind}-{way}-{number}-{self.seed:07d}", dice)
            await asyncio.sleep(dice.uniform(self.pause / 3, self.pause))

    async def _flow(self, tenant: Tenant, way: str, key: str, dice: random.Random) -> None:
        form = dice.choices(("named", "yaml", "cancelled", "failing"), (5, 2, 2, 1))[0]
        wanted = {"cancelled": _CANCELLED, "failing": _FAILED}.get(form, _COMPLETED)
        name = "fails" if form == "failing" else "trace"
        seconds = dice.uniform(0.0, 2.0 if form == "cancelled" else 0.6)
        params = {"path": str(self.site.note), "token": f"{tenant.name}-{key}", "seconds": seconds}
        if form == "yaml":
            text = _YAML.format(**params)
            send = self._sender(
                tenant,
                way,
                "/runs/yaml",
                lambda client, key: client.submit_run_yaml(text, "default", idempotency_key=key),
                data={"flow_name": "main", "tag": "default"},
                files={"workflow": ("flow.yaml", text.encode())},
            )
        else:
            send = self._sender(
                tenant,
                way,
                "/runs",
                lambda client, key: client.submit_run(name, params=params, idempotency_key=key),
                json={"flow_name": name, "params": params},
            )
        run = await self._insist(send, tenant, Kind.FLOW, key, wanted, dice)
        if run is not None and form == "cancelled":
            await self._cancel(tenant, run, dice)

    async def _pack(self, tenant: Tenant, way: str, key: str, dice: random.Random) -> None:
        body = BODY
        if dice.random() < 0.5:
            body = BODY | {"pack_type": "nap", "inputs": {"seconds": f"{dice.uniform(0.0, 2.0):.2f}"}}
        name, inputs, most = body["pack_type"], body["inputs"], body["reservation"]["max_cost_usd"]
        send = self._sender(
            tenant,
            way,
            "/v1/runs",
            lambda client, key: client.submit_pack(name, inputs, most, idempotency_key=key),
            json=body,
        )
        # A pack is begun once: one whose worker is lost fails, for the minimum fee. The judge asks why it did.
        await self._insist(send, tenant, Kind.PACK, key, _COMPLETED | _FAILED, dice)

    async def _program(self, tenant: Tenant, way: str, key: str, dice: random.Random) -> None:
        form = dice.choices(("calcA", "sleepn", "failn", "cancelled"), (3, 3, 1, 1))[0]
        wanted = {"failn": _FAILED, "cancelled": _CANCELLED}.get(form, _COMPLETED)
        name = "sleepn" if form == "cancelled" else form
        args = [str(dice.randint(1, 3))] if name != "sleepn" else [f"{dice.uniform(0.0, 1.0):.1f}"]
        job_id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
        parts = [("exec_name", (None, name)), ("job_id", (None, job_id)), *(("arg", (None, arg)) for arg in args)]
        send = self._sender(
            tenant,
            way,
            "/jobs",
            lambda client, _: client.submit_job(name, args, job_id=job_id),
            files=parts,
        )
        run = await self._insist(send, tenant, Kind.PROGRAM, job_id, wanted, dice)
        if run is not None and form == "cancelled":
            await self._cancel(tenant, run, dice)

    async def _cancel(self, tenant: Tenant, run: Accepted, dice: random.Random) -> None:
        """Repeated until it is answered; it may be too late by then."""
        await asyncio.sleep(dice.uniform(0.0, 1.5))
        until = time.monotonic() + _INSIST_SECONDS_MAX
        while time.monotonic() < until:
            address = dice.choice(self.site.addresses)
            answer = await self._post(tenant, address, f"/runs/{run.run_id}/cancel", {}, json={"reason": "storm"})
            if answer is not None and answer[0] != 503:
                if answer[0] not in {200, 409}:
                    self.book.complain(f"cancel of {run.kind} {run.run_id}: {answer}")
                return
            await asyncio.sleep(0.5)

    # How one is sent, and sent again.

    def _sender(
        self,
        tenant: Tenant,
        way: str,
        path: str,
        ours: Callable[[AsyncPyocoHttpClient, str], Awaitable[Any]],
        **body: Any,
    ) -> Send:
        async def plainly(address: str, key: str) -> Answer:
            return await self._post(tenant, address, path, {"Idempotency-Key": key}, **body)

        async def by_client(address: str, key: str) -> Answer:
            try:
                return 200, dict(await ours(self._client(tenant, address), key))
            except httpx.HTTPStatusError as error:
                return error.response.status_code, error.response.json()
            except httpx.TransportError:
                return None

        return plainly if way == "plain" else by_client

    async def _post(self, tenant: Tenant, address: str, path: str, headers: dict[str, str], **body: Any) -> Answer:
        client = self._plain[tenant.name]
        try:
            answer = await client.post(f"{address}{path}", headers=headers, **body)
        except httpx.TransportError:
            return None
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, {"text": answer.text[:300]}

    def _client(self, tenant: Tenant, address: str) -> AsyncPyocoHttpClient:
        found = self._ours.get((tenant.name, address))
        if found is None:
            found = AsyncPyocoHttpClient(address, tenant.key, timeout=_ANSWER_SECONDS_MAX, retries=2)
            self._ours[tenant.name, address] = found
        return found

    async def _insist(
        self, send: Send, tenant: Tenant, kind: Kind, key: str, wanted: frozenset[str], dice: random.Random
    ) -> Accepted | None:
        """Until it is accepted, or refused for good: then nothing of it may be there. Now and then it is asked for once
        more after the yes."""
        until = time.monotonic() + _INSIST_SECONDS_MAX
        run: Accepted | None = None
        is_clear = True
        while time.monotonic() < until:
            answer = await send(dice.choice(self.site.addresses), key)
            if answer is None:
                self.book.unanswered += 1
                is_clear = False  # it may still be on its way, and arrive after the no to a later one
            elif answer[0] in {200, 202}:
                run = self.book.accept(str(answer[1]["run_id"]), kind, tenant.name, key, wanted)
                if dice.random() < 0.9:
                    return run
            elif run is not None and answer[0] != 503:
                self.book.complain(f"{tenant.name}'s {kind} {key} is {run.run_id}, and now it is said: {answer}")
                return run
            elif not self._is_passing(kind, answer):
                if is_clear:
                    self.book.denied.add((tenant.name, key))
                return None
            self.book.repeated += 1
            await asyncio.sleep(dice.uniform(0.1, 0.6))
        if run is None:
            self.book.complain(f"{tenant.name}'s {kind} {key} was neither accepted nor refused")
        return run

    def _is_passing(self, kind: Kind, answer: tuple[int, dict[str, Any]]) -> bool:
        """Whether to send it again; whatever is not one of ours to give is noted."""
        status, document = answer
        reason = document.get("reason_code") or document.get("err_id") or ""
        self.book.refused[f"{kind} {status} {reason}".strip()] += 1
        if status == 503 or (kind, status, reason) == (Kind.PACK, 409, "IDEMPOTENCY_IN_PROGRESS"):
            return True
        if (kind, status) != (Kind.PACK, 402):
            self.book.complain(f"POST of a {kind}: {status} {document}")
        return False

    async def give(self, tenant: Tenant) -> None:
        """A little money now and then, so that budgets are refused and filled up again."""
        while not self.stopping.is_set():
            async with self.site.money() as priced:
                await credit(priced, tenant.name, _CREDIT_MICROS, str(uuid.uuid4()))
            self.credited[tenant.name] = self.credited.get(tenant.name, 0) + _CREDIT_MICROS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), 5.0)

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        limits = httpx.Limits(max_connections=40)
        for tenant in self.site.tenants:
            client = httpx.AsyncClient(
                timeout=_ANSWER_SECONDS_MAX, limits=limits, headers=tenant.headers, trust_env=False
            )
            self._plain[tenant.name] = await stack.enter_async_context(client)

    async def close(self) -> None:
        for client in self._ours.values():
            await client.close()


@contextlib.asynccontextmanager
async def loaded(load: Load) -> AsyncIterator[None]:
    """Load from here on; every answer has been noted when this ends."""
    async with contextlib.AsyncExitStack() as stack:
        await load.open(stack)
        stack.push_async_callback(load.close)
        async with asyncio.TaskGroup() as tasks:
            for tenant in load.site.tenants:
                for kind in Kind:
                    for way in ("plain", "client"):
                        tasks.create_task(load.call(tenant, kind, way))
            tasks.create_task(call_door(load.site, load.book, load.seed, load.stopping))
            tasks.create_task(load.give(load.site.tenants[-1]))
            try:
                yield
            finally:
                load.stop()


_YAML = """\
version: 1
tasks:
  trace:
    callable: support.chaos_flows:leaves_a_trace
flow:
  defaults:
    path: {path}
    token: {token}
    seconds: {seconds}
  graph: trace
"""
assert _COMPLETED | _FAILED | _CANCELLED == ENDS
