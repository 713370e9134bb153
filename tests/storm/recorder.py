"""Who writes down the history of a storm: every committed write of every run, and what readers and writers heard."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import msgspec

from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import to_snapshot
from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.bucket import Bucket, is_deletion
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link, Patience, Rejected, open_link
from pyoco_server.ports.nats.watch import watch
from pyoco_server.ports.runs.port import Absent, Changes, Lost, Runs, Stored, Withdrawn
from storm.history import LOST, Facts, History, Put, Read, Seen, Write, facts_of
from storm.port import Site

__all__ = ["RecordedRuns", "Recorder", "read_writes"]

BUCKET = "pyoco_runs"
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_SECOND = 1_000_000_000
_READ_SECONDS = 300.0
_SILENCE_SECONDS = 5.0
#: Behind the newest revision, and for longer: it does not follow any more.
_BEHIND_SECONDS_MAX = 120.0
_MARK = ("Nats-Marker-Reason", "MaxAge")


class Recorder:
    """Follows the bucket while it is open, so that what vanishes later is missed; reads all of it at the end, with what
    each write says it replaced. The bucket must keep every revision (`chaos.open_eyes(whole_history=True)`)."""

    def __init__(self, site: Site, bucket: str = BUCKET) -> None:
        self._url, self._bucket = site.nats_url, bucket
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._history = History()
        #: From the server's clock to ours, which is steady.
        self._offset = _offset()

    async def __aenter__(self) -> Self:
        self._link = await open_link(self._url, "recorder", Patience(down_seconds=10.0))
        self._task = asyncio.create_task(self._follow(self._link), name="recorder")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._link is not None:
            await self._link.close()

    async def _follow(self, link: Link) -> None:
        async with aclosing(watch(link, Bucket(link, self._bucket))) as batches:
            async for batch in batches:
                now = time.monotonic()
                for entry in batch.entries:
                    self._history.seen.append(Seen(entry.key, entry.revision, now, _facts(entry.value)))

    def note_read(self, run_id: str, answer: Mapping[str, Any] | None, began: float) -> None:
        """What a gateway has just answered to `GET /runs/{id}`; None: 404. Instants are `time.monotonic()`."""
        facts = None if answer is None else facts_of(answer)
        self._history.reads.append(Read(run_id, began, time.monotonic(), facts))

    def note(self, event: Read | Put) -> None:
        if isinstance(event, Read):
            self._history.reads.append(event)
        else:
            self._history.puts.append(event)

    async def history(self) -> History:
        """All that was written until now. Raises Unavailable, TimeoutError, and AssertionError when what passed by was
        not seen to the end."""
        assert self._link is not None
        assert self._task is not None
        async with asyncio.timeout(_READ_SECONDS):
            self._history.committed = await read_writes(self._link, self._bucket, self._offset)
        last = max((write.revision for write in self._history.committed), default=0)
        deadline = time.monotonic() + _BEHIND_SECONDS_MAX
        while last and not any(each.revision >= last for each in self._history.seen[-1:]):
            assert not self._task.done(), f"the recorder has ended: {_why(self._task)}"
            assert time.monotonic() < deadline, f"the recorder has not seen revision {last}"
            await asyncio.sleep(0.01)
        assert not self._task.done(), f"the recorder has ended: {_why(self._task)}"
        return self._history


def _offset() -> float:
    """Between two looks at one clock lies one at the other: of several tries, that in which the least time went by."""
    tries = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(10)]
    before, _, _ = found = min(tries, key=lambda each: each[2] - each[0])
    return before - found[1]


def _why(task: asyncio.Task[None]) -> str:
    return "cancelled" if task.cancelled() else repr(task.exception())


def _facts(value: bytes | None) -> Facts | None:
    return None if value is None else facts_of(json.loads(value))


class _State(msgspec.Struct):
    last_seq: int = 0


class _Info(msgspec.Struct):
    state: _State


class _Made(msgspec.Struct):
    num_pending: int = 0


async def read_writes(link: Link, bucket: str, offset: float = 0.0) -> list[Write]:
    """Every revision there is, in its order. A consumer for it is made anew from where the last one fell silent.
    `offset` is added to the server's instants."""
    found: list[Write] = []
    last = (await link.insist(f"STREAM.INFO.KV_{bucket}", {}, _Info)).state.last_seq
    while last and (not found or found[-1].revision < last):
        before = len(found)
        with contextlib.suppress(TimeoutError, Unavailable, Rejected):
            await _read_on(link, bucket, offset, found)
        if len(found) == before:
            if await _is_end(link, bucket, found):
                break
            await asyncio.sleep(0.2)
    return found


async def _is_end(link: Link, bucket: str, found: list[Write]) -> bool:
    """Whether the last number belongs to a message that is gone, and there is none behind what was read."""
    after = found[-1].revision if found else 0
    request = {"seq": after + 1, "next_by_subj": f"$KV.{bucket}.>"}
    try:
        await link.insist(f"STREAM.MSG.GET.KV_{bucket}", request, dict[str, Any])
    except Rejected:
        return True
    return False


async def _read_on(link: Link, bucket: str, offset: float, found: list[Write]) -> None:
    """Until there is nothing more, or silence. Acks nothing: the server sends as fast as flow control allows."""
    after = found[-1].revision if found else 0
    queue: asyncio.Queue[Raw] = asyncio.Queue()
    inbox = link.nc.new_inbox()
    name = "r" + inbox.rsplit(".", 1)[-1]
    subscription = await link.nc.listen(inbox, queue.put_nowait)
    config: dict[str, object] = {
        "name": name,
        "deliver_subject": inbox,
        "ack_policy": "none",
        "filter_subject": f"$KV.{bucket}.>",
        "mem_storage": True,
        "num_replicas": 1,
        "idle_heartbeat": _SECOND,
        "flow_control": True,
        "inactive_threshold": 10 * _SECOND,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": after + 1,
    }
    try:
        request = {"stream_name": f"KV_{bucket}", "config": config}
        made = await link.api(f"CONSUMER.CREATE.KV_{bucket}.{name}.$KV.{bucket}.>", request, _Made)
        left = made.num_pending
        while left:
            async with asyncio.timeout(_SILENCE_SECONDS):
                message = await queue.get()
            if message.status == "100":
                if message.reply:
                    await link.nc.publish(message.reply, b"")
                continue
            write = _write(message, len(f"$KV.{bucket}."), offset)
            if found and write.revision <= found[-1].revision:
                raise Unavailable("messages out of their order")
            found.append(write)
            left -= 1
    finally:
        link.nc.forget(subscription)
        await subscription.unsubscribe()
        await link.tell(f"$JS.API.CONSUMER.DELETE.KV_{bucket}.{name}")


def _write(message: Raw, skip: int, offset: float) -> Write:
    # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>, or two tokens more in front.
    tokens = message.reply.split(".")
    tokens = tokens if len(tokens) == 9 else tokens[2:]
    expected = message.headers.get(_EXPECTED)
    return Write(
        key=message.subject[skip:],
        revision=int(tokens[5]),
        replaced=None if expected is None else int(expected),
        facts=None if is_deletion(message.head) else _facts(message.data),
        stored_at=int(tokens[7]) / _SECOND + offset,
        is_mark=message.headers.get(_MARK[0]) == _MARK[1],
    )


class RecordedRuns:
    """The port of runs, with every call written down: for what runs in the test's own process."""

    def __init__(self, runs: Runs, note: Callable[[Read | Put], None]) -> None:
        self._runs, self._note = runs, note

    async def create(self, run: Run) -> Stored | Lost:
        with self._put(run.run_id, _shown(run), 0) as told:
            return told(await self._runs.create(run))

    def check_size(self, run: Run) -> None:
        self._runs.check_size(run)

    async def find(self, run_id: str) -> Stored | Withdrawn | Absent:
        began = time.monotonic()
        found = await self._runs.find(run_id)
        facts, revision = (_shown(found.run), found.revision) if isinstance(found, Stored) else (None, None)
        self._note(Read(run_id, began, time.monotonic(), facts, revision))
        return found

    async def replace(self, run: Run, revision: int) -> Stored | Lost:
        with self._put(run.run_id, _shown(run), revision) as told:
            return told(await self._runs.replace(run, revision))

    async def replace_smallest(self, run: Run, revision: int) -> Stored | Lost:
        return await self._runs.replace_smallest(run, revision)  # what it stores is not what it was given

    async def withdraw(self, run_id: str, revision: int) -> bool:
        return await self._runs.withdraw(run_id, revision)  # tells no revision

    async def newest(self) -> int:
        return await self._runs.newest()

    def changes(
        self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[Changes, None]:
        return self._runs.changes(after, epoch, on_heard)

    @contextlib.contextmanager
    def _put(self, key: str, facts: Facts, asked: int) -> Iterator[Callable[[Stored | Lost], Stored | Lost]]:
        """An error leaves the outcome open: the write may have taken effect."""
        began = time.monotonic()
        outcome: Any = None

        def told(answer: Stored | Lost) -> Stored | Lost:
            nonlocal outcome
            outcome = answer.revision if isinstance(answer, Stored) else LOST
            return answer

        try:
            yield told
        finally:
            self._note(Put(key, began, time.monotonic(), asked, facts, outcome))


def _shown(run: Run) -> Facts:
    return facts_of(to_snapshot(run))
