"""The `url` pack: fetches pages, several concurrently, and reports the result for every URL (contract 14.4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.packs.url import FETCH_TIMEOUT_SECONDS_MAX, REDIRECT_HOPS_MAX, URLS_MAX
from pyoco_server.core.priced.constants import URL_BODY_MAX_BYTES
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.core.priced.plain_text import plain
from pyoco_server.core.web.addresses import Refusal
from pyoco_server.core.web.body import Body, Flag
from pyoco_server.core.web.page import WebPage, read_page
from pyoco_server.core.web.targets import Discard, Exempt, Reach, Target, parse, parse_location
from pyoco_server.executors.packs.port import Context, Execute, PackError, stopped_by_budget
from pyoco_server.ports.web.port import AddressRefused, Broken, NameUnknown, NotConnected, TlsFailed, Web, WebResponse

__all__ = ["executor"]

#: Concurrent fetches.
_FETCHES_MAX: Final = 8
#: PRICED-139: a body whose declared length is larger is not read at all; and no more than this is read, whatever was
#: declared.
_DECLARED_BYTES_MAX: Final = 20 * 1_048_576
#: PRICED-142: no fetch begins this close to the end of the timebox.
_LAST_START_SECONDS: Final = 5.0
#: Fetches still in progress at this point are aborted; the rest of the time is for assembling the result.
_CUT_SECONDS: Final = 2.0
_LOOK_FOR_CANCEL_SECONDS: Final = 0.1
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CONTENT_TYPE_LENGTH_MAX: Final = 200

#: Reported reason of each WebError.
_DISCARDS: Final = {
    NameUnknown: Discard.DNS_FAILURE,
    NotConnected: Discard.CONNECT_FAILED,
    TlsFailed: Discard.TLS_FAILED,
}


def executor(config: PackConfig, web: Web) -> Execute:
    """Return the pack's executor, which uses `web`."""
    reach = Reach(allow_http=config.url_pack_allow_http, exempt=Exempt.read(config.url_pack_test_allow))
    tariff = config.prices.url

    def execute(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
        """Fetch the URLs. Raises PackError if it is cancelled; the error is discarded."""
        asked = _Asked.read(inputs)
        covered = tariff.covered(ctx.reserved_usd_micros, len(asked.wanted))
        work = _Work(web=web, reach=_narrowed(reach, inputs), ctx=ctx, asked=asked, covered=covered)
        asyncio.run(work.run())
        left = sum(isinstance(each, _Dropped) and each.reason is Discard.BUDGET for each in work.ended)
        return PackResult(
            data={
                "results": [each.row for each in work.ended if isinstance(each, _Fetched)],
                **stopped_by_budget(len(asked.wanted) - left, len(asked.wanted)),
            },
            discard_log=[{"url": each.url, "reason": each.reason} for each in work.ended if isinstance(each, _Dropped)],
            blocked_log=[each.row for each in work.ended if isinstance(each, _Blocked)],
            actual_cost_usd_micros=tariff.of(len(work.attempted)),
            meta={"url": {"defects": dict(work.defects)}} if work.defects else {},
        )

    return execute


def _narrowed(reach: Reach, inputs: Mapping[str, Any]) -> Reach:
    """A deployment may allow http, but the caller still has to request it."""
    is_https_only = inputs.get("allow_https_only", True)
    return Reach(allow_http=reach.allow_http and not is_https_only, exempt=reach.exempt)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    urls: tuple[str, ...]
    urls_max: int
    seconds: float
    hops_max: int

    @property
    def wanted(self) -> tuple[str, ...]:
        """Without those beyond `max_urls`."""
        return self.urls[: self.urls_max]

    @classmethod
    def read(cls, inputs: Mapping[str, Any]) -> _Asked:
        return cls(
            urls=tuple(inputs["urls"]),
            urls_max=int(inputs.get("max_urls", URLS_MAX)),
            seconds=float(inputs.get("fetch_timeout_sec", FETCH_TIMEOUT_SECONDS_MAX)),
            hops_max=int(inputs.get("max_redirect_hops", REDIRECT_HOPS_MAX)),
        )


# ---- The result of a URL ----


@dataclass(frozen=True)
class _Fetched:
    row: Mapping[str, Any]


@dataclass(frozen=True)
class _Dropped:
    url: str
    reason: Discard


@dataclass(frozen=True)
class _Blocked:
    url: str
    resolved_ip: str
    reason: Refusal

    @property
    def row(self) -> dict[str, str]:
        return {"url": self.url, "resolved_ip": self.resolved_ip, "reason": self.reason}


_Ended = _Fetched | _Dropped | _Blocked


class _Discarded(Exception):
    """No page will be returned for this URL."""

    def __init__(self, reason: Discard) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(kw_only=True)
class _Work:
    """All URLs of one run."""

    web: Web
    reach: Reach
    ctx: Context
    asked: _Asked
    #: Number of URLs for which the reservation covers a connection (SAFE-2).
    covered: int
    #: Indexes of the URLs to which a connection was attempted: those are charged.
    attempted: set[int] = field(default_factory=set)
    #: Unexpected errors by type: their messages may quote tenant data.
    defects: Counter[str] = field(default_factory=Counter)
    #: One page at a time, outside of the event loop, so that its timers keep running: a malicious page takes half a
    #: second.
    _reader: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "read page"))
    _ended: dict[int, _Ended] = field(default_factory=dict)
    #: Number of URLs that were begun: always the first ones.
    _begun: int = 0
    #: URLs to which a connection was attempted or may still be attempted; never more than `covered`.
    _held: int = 0
    _released: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def ended(self) -> list[_Ended]:
        """The result of each URL, in order: exactly one per URL (PRICED-146)."""
        return [
            self._ended.get(number) or _Dropped(url, self._never_begun(number))
            for number, url in enumerate(self.asked.urls)
        ]

    def _never_begun(self, number: int) -> Discard:
        if number >= self.asked.urls_max:
            return Discard.OVER_MAX_URLS
        return Discard.BUDGET if number >= self._begun and self._is_spent else Discard.TIMEBOX

    @property
    def _is_spent(self) -> bool:
        """Whether the reservation covers no further connection."""
        return len(self.attempted) >= self.covered

    async def run(self) -> None:
        """Fetch until shortly before the end of the timebox at most, keeping the results available by then."""
        lanes = asyncio.create_task(self._lanes())
        watch = asyncio.create_task(self._until_cancelled())
        try:
            left = max(0.0, self.ctx.seconds_left - _CUT_SECONDS)
            await asyncio.wait({lanes, watch}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                raise PackError("CANCELLED", "the run was cancelled")
            if lanes.done():
                lanes.result()
        finally:
            watch.cancel()
            lanes.cancel()
            await asyncio.gather(lanes, watch, return_exceptions=True)
            self._reader.shutdown(wait=False, cancel_futures=True)

    async def _lanes(self) -> None:
        waiting = iter(enumerate(self.asked.wanted))
        async with asyncio.TaskGroup() as lanes:
            for _ in range(_FETCHES_MAX):
                lanes.create_task(self._lane(waiting))

    async def _until_cancelled(self) -> None:
        while not self.ctx.cancelled.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(_LOOK_FOR_CANCEL_SECONDS)

    async def _lane(self, waiting: Iterator[tuple[int, str]]) -> None:
        while await self._hold():
            # After the wait: otherwise the URLs that are left over would not be the last ones.
            number, url = next(waiting, (None, ""))
            if number is None or self.ctx.seconds_left <= _LAST_START_SECONDS:
                await self._release()
                return
            self._begun = number + 1
            self._ended[number] = await self._fetched(number, url)
            if number in self.attempted:
                await self._wake()
            else:
                await self._release()

    async def _hold(self) -> bool:
        """Reserve the price of one connection for a URL. Waits while the URLs in progress may use up the reservation.
        Returns False if it is used up."""
        async with self._released:
            await self._released.wait_for(lambda: self._is_spent or self._held < self.covered)
            if self._is_spent:
                return False
            self._held += 1
            return True

    async def _release(self) -> None:
        self._held -= 1
        await self._wake()

    async def _wake(self) -> None:
        async with self._released:
            self._released.notify_all()

    async def _fetched(self, number: int, url: str) -> _Ended:
        fetch = _Fetch(self.web, self.reach, self.asked, lambda: self.attempted.add(number))
        try:
            async with asyncio.timeout(self.asked.seconds):
                await fetch.run(url)
        except TimeoutError:
            return _Dropped(url, Discard.TIMEOUT)
        except _Discarded as discarded:
            return _Dropped(url, discarded.reason)
        except AddressRefused as refused:
            return _Blocked(url, refused.address, refused.why)
        except (NameUnknown, NotConnected, TlsFailed) as error:
            return _Dropped(url, _DISCARDS[type(error)])
        except Exception as error:  # noqa: BLE001  (a misbehaving server must not affect other URLs)
            self.defects[type(error).__name__] += 1
            return _Dropped(url, Discard.CONNECT_FAILED)
        # Outside of the timeout: a page that arrived in time is not late because parsing takes a while.
        return _Fetched({"url": url, **fetch.row(await self._read(fetch))})

    async def _read(self, fetch: _Fetch) -> WebPage | None:
        """Parse the page. Returns None if that fails."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, fetch.page)
        except Exception as error:  # noqa: BLE001  (as above)
            self.defects[type(error).__name__] += 1
            return None


class _Fetch:
    """One URL with its redirects. Raises _Discarded and WebError; may be cancelled anywhere."""

    def __init__(self, web: Web, reach: Reach, asked: _Asked, attempt: Callable[[], object]) -> None:
        self._web, self._reach, self._asked, self._attempt = web, reach, asked, attempt
        self._deadline = asyncio.get_running_loop().time() + asked.seconds

    async def run(self, url: str) -> None:
        """Follow redirects. Every hop is parsed, resolved and checked again (PRICED-138)."""
        place = parse(url, self._reach)
        for _ in range(self._asked.hops_max + 1):
            if isinstance(place, Discard):
                raise _Discarded(place)
            pinned = await self._web.pin(place)
            self._attempt()
            async with self._web.get(pinned, self._deadline - asyncio.get_running_loop().time()) as answer:
                location = answer.headers.get("location")
                if answer.status not in _REDIRECTS or location is None:
                    return await self._read(place, answer)
            place = parse_location(location, place, self._reach)
        raise _Discarded(Discard.TOO_MANY_REDIRECTS)

    async def _read(self, place: Target, answer: WebResponse) -> None:
        declared = answer.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > _DECLARED_BYTES_MAX:
            raise _Discarded(Discard.CONTENT_TOO_LARGE)
        body = Body(answer.headers.get("content-encoding", ""), URL_BODY_MAX_BYTES, _DECLARED_BYTES_MAX)
        try:
            while body.wants and (chunk := await anext(answer.body, None)) is not None:
                body.feed(chunk)
            body.end()
        except Broken:
            body.stop()
        self._place, self._answer, self._body = place, answer, body
        self._fetched_at = datetime.now(UTC)

    @property
    def _content_type(self) -> str:
        return plain(self._answer.headers.get("content-type", ""), _CONTENT_TYPE_LENGTH_MAX)

    def page(self) -> WebPage:
        return read_page(self._body.data, self._content_type)

    def row(self, page: WebPage | None) -> dict[str, Any]:
        """Return the URL's row of the result, without the URL."""
        flags = [self._body.flag, Flag.UNREADABLE if page is None else None]
        row: dict[str, Any] = {
            "final_url": self._place.url,
            "status_code": self._answer.status,
            "content_type": self._content_type,
            "fetched_at": self._fetched_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "flags": [flag for flag in flags if flag],
        }
        texts = {"title": page.title, "text_excerpt": page.text} if page else {}
        return row | {name: text for name, text in texts.items() if text}
