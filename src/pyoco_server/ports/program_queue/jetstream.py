"""The queue of programs: one WorkQueue stream with a subject per run, and one durable consumer per queue."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence

import msgspec

from pyoco_server.core.programs.job import ProgramJob, to_message
from pyoco_server.core.programs.names import client_id_of, client_key, tenant_token_of
from pyoco_server.core.rounds import Rounds
from pyoco_server.errors import NotStored, QueueFull, Unavailable
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.consumers import durable, find_consumer, find_or_make
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.messages import StoredMessages
from pyoco_server.ports.nats.mirror import Mirror
from pyoco_server.ports.nats.storing import RefusedStore, store_until_certain
from pyoco_server.ports.program_queue.port import ClientQueue, ClientQueueCounts, QueueTotals, Replica
from pyoco_server.ports.program_queue.pulls import ConsumerMissing, Pulls
from pyoco_server.ports.queue.port import Delivery

__all__ = ["SUBJECTS", "JetStreamProgramQueue", "consumer_name"]

_SECOND = 1_000_000_000
_DAY = 86_400
SUBJECTS = "pyoco.exec"
#: The server's error code for three cases (GRID-9): this subject already has a message; the stream is full; the first
#: copy still waits for a majority.
_STORE_FAILED = 10077
_OF_SUBJECT = "per subject"
#: GRID-9: how long to wait for a message that the server reports but cannot return.
_UNSEEN_SECONDS, _UNSEEN_PAUSE_SECONDS = 10.0, 0.5
_ROUNDS_MAX = 5
#: Pause after a consumer was created, or during a leader election.
_AGAIN_SECONDS = 0.05


class _Counts(msgspec.Struct):
    num_pending: int = 0
    num_ack_pending: int = 0


class _State(msgspec.Struct):
    messages: int = 0
    bytes: int = 0
    last_seq: int = 0


class _Peer(msgspec.Struct):
    name: str
    current: bool = False
    offline: bool = False
    lag: int = 0


class _Cluster(msgspec.Struct):
    leader: str = ""
    replicas: list[_Peer] = []


class _StreamInfo(msgspec.Struct):
    state: _State
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)


class _Subjects(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _Listed(msgspec.Struct):
    state: _Subjects


class _ClientQueueValue(msgspec.Struct):
    created_at: float = 0.0


_encode_quickly = msgspec.json.Encoder().encode


def _encode(job: ProgramJob) -> bytes:
    try:
        return _encode_quickly(to_message(job))
    except (TypeError, ValueError, OverflowError):  # text that is invalid in UTF-8: the other encoder escapes it
        return json.dumps(to_message(job), separators=(",", ":")).encode()


def consumer_name(queue: ClientQueue) -> str:
    """Return the consumer's name (section 2.1), the same in all processes: a WorkQueue stream allows one consumer per
    filter."""
    key = f"{queue.group}\0{queue.exec_name}\0{queue.client}".encode()
    return f"x_{hashlib.sha256(key).hexdigest()[:32]}"


def _key_of(queue: ClientQueue) -> str:
    """Return the key of a queue.

    The tenant is a separate token: doors without tenants ignore such a queue, and take no job from it.
    """
    tenant = tenant_token_of(queue.client)
    words = (queue.group, queue.exec_name, client_id_of(queue.client))
    return ".".join(words if tenant is None else (*words, tenant))


def _queue_of_key(key: str) -> ClientQueue | None:
    match key.split("."):
        case [group, exec_name, client_id]:
            return ClientQueue(group, exec_name, client_id)
        case [group, exec_name, client_id, tenant]:
            return ClientQueue(group, exec_name, client_key(client_id, tenant))
    return None


def _read_queue(_: bytes) -> bool:
    """Ignore the value: only the key matters."""
    return True


class JetStreamProgramQueue:
    def __init__(
        self,
        link: Link,
        stream: str,
        queues_bucket: str,
        ack_wait_seconds: float,
        clock: Callable[[], float],
        others: Sequence[str] = (),
    ) -> None:
        """`others`: the streams that `replicas` reports in addition to this one."""
        self._link, self._stream, self._others = link, stream, others
        self._ack_wait_seconds, self._clock = ack_wait_seconds, clock
        self._pulls, self._jobs = Pulls(link, stream), StoredMessages(link, stream)
        self._bucket = Bucket(link, queues_bucket)
        self._on_queue: list[Callable[[ClientQueue], None]] = []
        self._queues: dict[str, dict[str, ClientQueue]] = {}
        self._mirror = Mirror(link, self._bucket, _read_queue, self._on_new)
        #: By queue: subject prefix and consumer name. A cache, because every check needs them.
        self._names: dict[ClientQueue, tuple[str, str]] = {}

    async def start(self, on_queue: Callable[[ClientQueue], None] | None = None) -> None:
        if on_queue is not None:
            for queues in self._queues.values():
                for queue in queues.values():
                    on_queue(queue)
            self._on_queue.append(on_queue)
        await self._mirror.start()

    async def stop(self) -> None:
        await self._mirror.stop()
        await self._pulls.close()

    def _on_new(self, key: str, _: bool) -> None:
        queue = _queue_of_key(key)
        if queue is None:
            return  # a foreign key
        queues = self._queues.setdefault(queue.group, {})
        if key not in queues:
            queues[key] = queue
            for notify in self._on_queue:
                notify(queue)

    def client_queues(self, group: str) -> list[ClientQueue]:
        return list(self._queues.get(group, {}).values())

    async def add_client_queue(self, queue: ClientQueue) -> None:
        key = _key_of(queue)
        if self._mirror.get(key):
            return
        value = msgspec.json.encode(_ClientQueueValue(self._clock()))
        revision = 0
        rounds = Rounds("the record of a queue")
        while True:
            rounds.begin()
            written = await self._bucket.write(key, value, revision)
            entry = written or await self._bucket.get(key)
            if entry is not None and entry.value is not None:
                self._mirror.note(entry)
                return
            revision = entry.revision if entry is not None else 0  # the record was deleted

    def _of(self, queue: ClientQueue) -> tuple[str, str]:
        names = self._names.get(queue)
        if names is None:
            prefix = f"{SUBJECTS}.{queue.group}.{queue.exec_name}.{queue.client}"
            names = self._names[queue] = prefix, consumer_name(queue)
        return names

    # One message per run.

    @staticmethod
    def _subject(job: ProgramJob) -> str:
        return ".".join((SUBJECTS, *job.subject_tokens))

    async def put(self, job: ProgramJob) -> None:
        subject, data = self._subject(job), _encode(job)
        unseen_since: float | None = None
        while True:
            try:
                await store_until_certain(
                    self._link, subject, data, stream=self._stream, doing="cannot reach the queue of programs"
                )
            except RefusedStore as error:
                is_ambiguous = error.is_ambiguous or unseen_since is not None
                if error.code != _STORE_FAILED:
                    what = f"the queue refuses a job: {error}"
                    raise (Unavailable if is_ambiguous else NotStored)(what) from error
                if await self._sequence(subject) is not None:
                    return
                if _OF_SUBJECT not in str(error):
                    raise (Unavailable if is_ambiguous else QueueFull)("the queue of programs is full") from error
                # A copy exists that cannot be read yet: it waits for a majority, or was removed just now.
                unseen_since = unseen_since or time.monotonic()
                if time.monotonic() - unseen_since > _UNSEEN_SECONDS:
                    raise Unavailable("the queue says that a job is there, and cannot show it") from error
                await asyncio.sleep(_UNSEEN_PAUSE_SECONDS)
            except NotStored as error:
                if unseen_since is None:
                    raise
                raise Unavailable(str(error)) from error  # the copy that cannot be read may count
            else:
                return

    async def has(self, job: ProgramJob) -> bool:
        return await self._sequence(self._subject(job)) is not None

    async def _sequence(self, subject: str) -> int | None:
        """Return the sequence of the message on this subject according to the leader.

        None: there is none. Raises Unavailable.
        """
        found = await self._jobs.last(subject)
        return None if found is None else found.seq

    async def remove(self, job: ProgramJob) -> bool:
        sequence = await self._sequence(self._subject(job))
        return sequence is not None and await self._jobs.remove(sequence)

    async def listed(self, offset: int = 0) -> list[tuple[ClientQueue, str]]:
        request = {"subjects_filter": f"{SUBJECTS}.>", "offset": offset}
        try:
            info = await self._link.insist(f"STREAM.INFO.{self._stream}", request, _Listed)
        except Rejected as error:
            raise Unavailable(f"cannot look into {self._stream}: {error}") from error
        found = []
        for subject in info.state.subjects or ():
            *_, group, exec_name, client, run_id = subject.split(".")
            found.append((ClientQueue(group, exec_name, client), run_id))
        return found

    # Queues.

    async def take(self, queue: ClientQueue, count: int = 1) -> list[Delivery]:
        prefix, consumer = self._of(queue)
        try:
            return await self._pulls.take(consumer, prefix, count)
        except ConsumerMissing:
            await self._make(queue)
        for _ in range(_ROUNDS_MAX):
            try:
                return await self._pulls.take(consumer, prefix, count)
            except ConsumerMissing:  # in a cluster, its leader is not elected immediately
                await asyncio.sleep(_AGAIN_SECONDS)
        raise Unavailable("the consumer of a queue does not answer")

    async def _make(self, queue: ClientQueue) -> None:
        """Create the consumer of a queue (GRID-7, GRID-63). An existing one keeps its settings."""
        prefix, name = self._of(queue)
        wanted = durable(
            name,
            self._ack_wait_seconds,
            filter_subject=f"{prefix}.*",
            max_ack_pending=10_000,
            inactive_threshold=_DAY * _SECOND,
        )
        await find_or_make(self._link, self._stream, wanted)

    async def counts(self, queue: ClientQueue) -> ClientQueueCounts | None:
        found = await find_consumer(self._link, self._stream, self._of(queue)[1], _Counts)
        return None if found is None else ClientQueueCounts(found.num_pending, found.num_ack_pending)

    # The whole queue.

    async def oldest(self, group: str, exec_name: str) -> float | None:
        first = await self._jobs.next(f"{SUBJECTS}.{group}.{exec_name}.*.*")
        return None if first is None else first.time.timestamp()

    async def totals(self) -> QueueTotals:
        state = (await self._info(self._stream)).state
        return QueueTotals(state.messages, state.bytes, state.last_seq)

    async def replicas(self) -> list[Replica]:
        streams = (self._stream, *self._others)
        found = await asyncio.gather(*(self._info(stream) for stream in streams))
        return [each for stream, info in zip(streams, found, strict=True) for each in _replicas(stream, info.cluster)]

    async def _info(self, stream: str) -> _StreamInfo:
        try:
            return await self._link.insist(f"STREAM.INFO.{stream}", {}, _StreamInfo)
        except Rejected as error:
            raise Unavailable(f"cannot look at {stream}: {error}") from error


def _replicas(stream: str, cluster: _Cluster) -> list[Replica]:
    leader = [Replica(stream, cluster.leader, True, True, 0)] if cluster.leader else []
    followers = [
        Replica(stream, each.name, False, each.current and not each.offline, each.lag) for each in cluster.replicas
    ]
    return leader + followers
