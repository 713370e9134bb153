"""One permanent connection to NATS, with many concurrent requests over it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
import nats.errors

from pyoco_server.errors import NoRoom, NotStored, Unavailable
from pyoco_server.logs import get_logger, redact_url
from pyoco_server.ports.nats.access import Access, Certificates, why_not_in
from pyoco_server.ports.nats.answers import (
    NEVER,
    STREAM_NOT_FOUND,
    fault_of,
    read_answer,
    refusal,
    stream_of,
    swallower,
)
from pyoco_server.ports.nats.client import QuickClient, Raw
from pyoco_server.ports.nats.expected import Expected
from pyoco_server.ports.nats.faults import (
    BadSubject,
    Futile,
    Missing,
    NoConnection,
    NotPermitted,
    Rejected,
    StreamFull,
    gave_up,
)
from pyoco_server.ports.nats.memory.client import MemoryClient
from pyoco_server.ports.nats.patience import Patience, within
from pyoco_server.ports.nats.pending import Pending, Swallowed
from pyoco_server.ports.nats.refusals import Refusals
from pyoco_server.ports.nats.violations import Violations
from pyoco_server.ports.store_state import StoreState

__all__ = [
    "BadSubject",
    "Futile",
    "Link",
    "Missing",
    "NoConnection",
    "NotPermitted",
    "Patience",
    "Rejected",
    "StreamFull",
    "gave_up",
    "open_link",
]

log = get_logger(__name__)

T = TypeVar("T")

_SWEEP_SECONDS = 0.1
_LOG_SECONDS = 10.0
#: The reply token of messages whose answers are ignored.
_IGNORED = "-"
#: After "no responders", the stream's existence is checked at most this often, and the check takes at most this long.
_CHECK_EVERY_SECONDS, _CHECK_SECONDS = 1.0, 1.0


class _Names(msgspec.Struct):
    total: int = 0
    streams: list[str] | None = None


class Link:
    """A connection that always reconnects. All requests to JetStream go through `ask`."""

    #: Bounds memory if NATS is slow: further requests wait.
    IN_FLIGHT_MAX = 2048

    def __init__(self, patience: Patience) -> None:
        self.nc: QuickClient | MemoryClient = QuickClient()
        self.patience = patience
        self._inbox = ""
        self._count = 0
        self._inbox_dot = ""
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.Task[None] | None = None
        #: The requests without a response so far.
        self._pending = Pending(self._loop, self._swallowed)
        self._gate = asyncio.Semaphore(self.IN_FLIGHT_MAX)
        self._up = asyncio.Event()
        self._is_closing = False
        self._logged_at = -_LOG_SECONDS
        self._url = ""
        self._access = Access(url="")
        #: The last known reason of a refused connection: some attempts only report a lost connection.
        self._why_not_in = ""
        self._violations = Violations()
        self._refusals = Refusals()
        #: The streams that this process uses and has found or created, by name.
        self.expected: dict[str, Expected] = {}
        #: For streams without responders: the last check of their existence, and when it was started.
        self._checks: dict[str, tuple[asyncio.Task[bool], float]] = {}
        #: Called when the connection is lost, in the order in which they were added.
        self.on_loss: dict[Callable[[], None], None] = {}
        #: Counts the losses. The server drops waiting pull requests together with their connection.
        self.connection = 0

    async def open(self, access: str | Access, name: str, connect_seconds: float) -> None:
        """Connect, or raise NotStored after `connect_seconds`. After that, lost connections are always restored.

        Raises SettingError before connecting if a configured file cannot be used, NotPermitted if the user may not
        receive responses.
        """
        self._access = access if isinstance(access, Access) else Access(url=access)
        self._url = redact_url(self._access.url)
        options = self._access.options()
        if self._access.is_memory:
            self.nc = MemoryClient()
        try:
            await within(self._connect(name, options), connect_seconds)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            reason = why_not_in(self.nc.last_error) or self._why_not_in
            with contextlib.suppress(Exception):  # never connected; nothing can be lost
                await self.nc.close()
            raise NotStored(f"no NATS server answers at {self._url}{reason and f': {reason}'}") from error
        await self._listen()
        self._sweeper = asyncio.create_task(self._sweep(), name="link sweeper")
        self._up.set()

    async def _listen(self) -> None:
        """Subscribe to the inbox, and wait one round trip for a refusal. Raises NotPermitted."""
        self._inbox = self.nc.new_inbox()
        self._inbox_dot = self._inbox + "."
        await self.nc.listen(self._inbox + ".*", self._on_reply)
        with contextlib.suppress(TimeoutError, nats.errors.Error):  # then the first request will fail
            await self.nc.send_pending()
            await self.nc.flush(2)
        why = self._violations.inbox
        if why is not None:
            self._is_closing = True
            await self.nc.close()
            raise why

    async def _connect(self, name: str, options: Mapping[str, Any]) -> None:
        self.nc.demands_tls = self._access.demands_tls
        if "tls" in options:
            self.nc.certificates = Certificates(self._access, options["tls"])
        await self.nc.connect(
            servers=[part.strip() for part in self._access.url.split(",")],
            name=name,
            connect_timeout=2,
            # The library's defaults give up after 60 tries and notice a hung peer after 4 minutes.
            max_reconnect_attempts=-1,
            # Jitter, not a secret; the library types it as whole seconds but sleeps for fractions, too.
            reconnect_time_wait=0.1 + random.random() * 0.3,  # type: ignore[arg-type]  # noqa: S311
            ping_interval=5,
            max_outstanding_pings=2,
            skip_subject_validation=True,  # `ask` and `tell` check subjects themselves, in a tenth of a microsecond
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            **options,
        )

    async def close(self) -> None:
        """Send pending data and close. May be called more than once."""
        if self.nc.is_closed:
            return
        self._is_closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for check, _ in self._checks.values():
            check.cancel()
        self._pending.close()
        if self.nc.is_connected:
            try:
                async with asyncio.timeout(2):
                    await self.nc.flush()
            except (TimeoutError, nats.errors.Error) as error:
                log.warning("closing without a last flush", error=error)
        if not self.nc.is_connected:
            # Otherwise the library would try to send its pending data, fail, and not complete the close.
            self.nc.drop_pending()
        await self.nc.close()

    @property
    def is_up(self) -> bool:
        return self.nc.is_connected

    @property
    def is_clustered(self) -> bool:
        """Whether NATS has several nodes: a write to one of them may be visible on another only a moment later."""
        return bool(self.nc.server_info.get("cluster"))

    @property
    def store_state(self) -> StoreState:
        return self._refusals.state(self._loop.time())

    def store_state_of(self, stream: str) -> StoreState:
        return self._refusals.state(self._loop.time(), stream)

    async def until_up(self, seconds: float) -> None:
        """Wait for the connection. Raises NoConnection: nothing was sent, so nothing can have been stored."""
        try:
            async with asyncio.timeout(seconds):
                while not self.nc.is_connected:
                    self._up.clear()  # the library calls `disconnected_cb` some time after the loss
                    await self._up.wait()
        except TimeoutError:
            raise NoConnection("there is no connection to NATS") from None

    async def ask(
        self,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
        *,
        stored_in: str | None = None,
    ) -> Raw:
        """Send a request and return the response. Many may be in flight over one inbox.

        Raises NotStored if there are no responders, or NotPermitted (a NotStored) if NATS does not permit the request;
        Unavailable if no response came, in which case the request may have been processed; Rejected if it is too large
        to be sent, or BadSubject (a Rejected) if the subject is invalid. `stored_in` marks a write, and names its
        stream or is "".
        """
        if " " in subject or not subject.isprintable():
            raise BadSubject(subject)
        if not self.nc.is_connected:
            await self.until_up(self.patience.down_seconds)
        if self._violations.inbox is not None:
            raise self._violations.inbox
        await self._gate.acquire()  # first in, first out: the chunks of an object are sent in their order
        self._count += 1
        token = str(self._count)
        answer = self._pending.add(token, subject, seconds or self.patience.answer_seconds, stored_in)
        self.nc.in_flight = len(self._pending)
        try:
            await self.nc.send(subject, payload, self._inbox_dot + token, headers)
            message = await answer
        except nats.errors.MaxPayloadError as error:
            raise Rejected(0, f"{len(payload)} bytes are more than NATS takes") from error
        except nats.errors.Error as error:
            raise NotStored(f"cannot send on {subject}") from error
        finally:
            self._pending.remove(token)
            self._gate.release()
        if message.status == "503":
            raise NotStored(f"no responders on {subject}")
        return message

    async def _sweep(self) -> None:
        """Expire requests. One timer for all: a timer for each would cost as much as the request."""
        while not self.nc.is_closed:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._pending.expire()
            if self._violations.is_retry_due(self._loop.time()):
                await self.nc.force_reconnect()

    def check_heard(self, subject: str) -> None:
        """Raise NotPermitted if a subscription was refused. Call it one round trip after subscribing."""
        self._violations.check_heard(subject)

    async def tell(self, subject: str, payload: bytes = b"") -> None:
        """Publish a message and ignore the response. Best effort. Raises BadSubject."""
        if " " in subject or not subject.isprintable():
            raise BadSubject(subject)
        if self.nc.is_connected:
            await self.nc.publish(subject, payload, self._inbox_dot + _IGNORED)

    async def store(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None, *, stream: str = ""
    ) -> int:
        """Publish to `stream` and wait for the acknowledgement. Returns the sequence.

        Raises as `ask`; Missing if the stream does not exist, provided its name is given; Rejected; StreamFull if the
        stream has no room, so nothing was stored; NoRoom if the disk of NATS has failed, so it may have been stored.
        """
        before = self.connection, self._pending.late
        try:
            message = await self.ask(subject, payload, headers, stored_in=stream)
        except Futile:
            raise
        except Swallowed as error:
            raise self._stuck(error) from error
        except NotStored:
            await self._check_exists(stream)
            raise
        except Unavailable as error:
            stuck = await self._swallowed(subject)
            if not stuck or before != (self.connection, self._pending.late):
                raise
            raise self._stuck(Swallowed(stuck)) from error
        answer = read_answer(message.data)
        if answer.error is not None:
            refused = refusal(subject, answer, answer.error)
            if isinstance(refused, StreamFull):
                self._refusals.note(answer.stream, self._loop.time(), is_stuck=False)
            raise refused
        if self._refusals:
            self._refusals.stored(answer.stream)
        return answer.seq

    def _stuck(self, error: Swallowed) -> NoRoom:
        self._refusals.note(error.stream, self._loop.time(), is_stuck=True)
        return NoRoom(str(error))

    async def _check_exists(self, stream: str) -> None:
        """Raise Missing if the stream does not exist. Called after "no responders".

        That answer may also mean that the stream has no leader during an election. The meta API answers 404 only if the
        stream does not exist. Concurrent writers share one check.
        """
        if not stream:
            return
        now = self._loop.time()
        check, asked_at = self._checks.get(stream, (None, float("-inf")))
        if check is None or (check.done() and now - asked_at >= _CHECK_EVERY_SECONDS):
            check = asyncio.create_task(self._is_missing(stream), name=f"is {stream} missing")
            self._checks[stream] = check, now
        await asyncio.wait({check})  # a cancelled caller must not cancel the shared check
        if not check.cancelled() and check.result():
            raise Missing(stream)

    async def _is_missing(self, stream: str) -> bool:
        try:
            await self.api(f"STREAM.INFO.{stream}", {}, dict[str, Any], seconds=_CHECK_SECONDS)
        except Missing:
            self._checks.pop(stream, None)  # it may be created at any moment: the next writer checks again
            return True
        except (Unavailable, Rejected):
            return False
        return False

    async def _swallowed(self, subject: str) -> str:
        """Return the stream that has received our message but will never respond; "" if that is not known.

        Called after a silence. NATS sends no response if a write to its disk fails. But a stream handles messages in
        order: once it has responded to a later one, which it must refuse, there is no response to ours. In a cluster
        timeouts have other causes, and another node takes over.
        """
        if self.is_clustered or not self.is_up:
            return ""
        try:
            message = await self.ask(subject, b"", NEVER, seconds=2.0)
        except (Unavailable, Rejected):
            return ""
        return swallower(message.data)

    async def api(self, subject: str, request: object, answer: type[T], seconds: float | None = None) -> T:
        """Make a JetStream API call. Raises Missing if its stream does not exist, Rejected with JetStream's code."""
        message = await self.ask(f"$JS.API.{subject}", msgspec.json.encode(request), seconds=seconds)
        fault = fault_of(message.data)
        if fault is not None and fault.err_code == STREAM_NOT_FOUND:
            raise Missing(stream_of(subject))
        if fault is not None:
            raise Rejected(fault.err_code, fault.description)
        return msgspec.json.decode(message.data, type=answer)

    async def insist(self, subject: str, request: object, answer: type[T]) -> T:
        """Make an idempotent API call, with retries while patience lasts, since an election takes 4 to 9 s."""
        deadline = self._loop.time() + self.patience.unanswered_seconds
        while True:
            try:
                return await self.api(subject, request, answer, seconds=min(2.0, self.patience.answer_seconds))
            except Unavailable as error:
                # Without a connection `ask` has already waited for one.
                if isinstance(error, Futile) or self._loop.time() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def stream_names(self) -> frozenset[str]:
        """Return all streams of the account from the meta leader; one round trip per 1,024. Raises Unavailable."""
        found: set[str] = set()
        while True:
            try:
                page = await self.api("STREAM.NAMES", {"offset": len(found)}, _Names, seconds=_CHECK_SECONDS)
            except Rejected as error:
                raise Unavailable(f"cannot list the streams: {error}") from error
            found.update(page.streams or ())
            if not page.streams or len(found) >= page.total:
                return frozenset(found)

    def _on_reply(self, message: Raw) -> None:
        token = message.subject[len(self._inbox_dot) :]
        if token != _IGNORED:
            self._pending.answer(token, message)

    async def _on_error(self, error: Exception) -> None:
        """Log errors of the library, rate-limited: it reports every failed connection attempt, several a second."""
        refused = self._violations.note(error, self._inbox, self._url, self._loop.time())
        if refused is not None:
            self._fail_refused(refused)
            return
        self._why_not_in = why_not_in(error) or self._why_not_in
        now = self._loop.time()
        if now - self._logged_at > _LOG_SECONDS:
            self._logged_at = now
            log.warning("NATS reported an error", reason=f"{type(error).__name__}: {error}", url=self._url)

    def _fail_refused(self, refused: str) -> None:
        """Fail the requests to a subject that we may not publish to, or all if we cannot receive responses."""
        inbox = self._violations.inbox
        self._pending.fail(
            lambda subject: inbox or (NotPermitted(f"publish to {subject}") if subject.lower() == refused else None)
        )

    async def _on_disconnected(self) -> None:
        self._violations.forget()
        self.connection += 1  # not in `_on_reconnected`, which the library calls a moment after the connection is up
        self._up.clear()
        if not self._is_closing:
            log.warning("NATS connection lost", url=self._url)
        # Responses will not arrive any more: fail the requests now; callers read back after the reconnect.
        self._pending.fail(lambda _: Unavailable("the connection to NATS was lost before the answer came"))
        for notify in list(self.on_loss):
            notify()

    async def _on_reconnected(self) -> None:
        self._refusals.forget_all()
        self._up.set()
        log.info("NATS connection restored", url=self._url)


async def open_link(
    access: str | Access, name: str, patience: Patience | None = None, connect_seconds: float = 5.0
) -> Link:
    """Open a link, by an address alone or with credentials. Raises SettingError, NotStored, NotPermitted."""
    link = Link(patience or Patience())
    await link.open(access, name, connect_seconds)
    return link
