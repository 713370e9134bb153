"""An answerer that calls a server with OpenAI's chat API. Loads httpx2; built only in the processes that need it."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, wait
from typing import Any, Final

import httpx2

from pyoco_server.core.answers.answer import Ask, DocumentAnswer
from pyoco_server.errors import SettingError
from pyoco_server.ports.answerer.chat import read_answer, write_request
from pyoco_server.ports.answerer.port import AnswererRefused, AnswererUnavailable, BadAnswer, NobodyWaits

__all__ = ["ANSWER_BYTES_MAX", "OpenAiAnswerer"]

ANSWER_BYTES_MAX: Final = 1 << 20
#: Reserved from the timebox, so that the pack can still report what happened; at most half of a short timebox.
_RESERVE_SECONDS: Final = 1.0
_CONNECT_SECONDS_MAX: Final = 10.0
#: An answerer that had at least this long and did not answer counts as unavailable. A caller that allows it less time
#: pays for the attempt.
_PATIENCE_SECONDS: Final = 10.0
#: How soon a cancel request takes effect.
_LISTEN_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 0.5
#: A server that requests a longer pause than this is not retried.
_PAUSE_SECONDS_MAX: Final = 5.0

#: The statuses for a wrong key, address or model. Other 4xx are about the question.
_MISUSES: Final = frozenset({401, 402, 403, 404, 405, 410})

_KEY = re.compile(r"[!-~]*", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,4}", re.ASCII)


class _Later(Exception):
    """A retry may succeed. Carries the pause before it, and the error text if there is no retry."""

    def __init__(self, detail: str, pause_seconds: float = _PAUSE_SECONDS) -> None:
        super().__init__(detail)
        self.pause_seconds = pause_seconds


class _TooSlow(Exception):
    """The deadline passed before an answer arrived."""

    def __init__(self, *, is_operators_fault: bool = False) -> None:
        super().__init__("the answerer did not answer in time")
        self.is_operators_fault = is_operators_fault


class OpenAiAnswerer:
    """Sends one request per question; two if the first one hit a broken connection, 408, 429 or 5xx and time is left.

    Each request has its own connection. Redirects are not followed, proxies from the environment are ignored, and at
    most 1 MiB is read.
    """

    def __init__(self, url: str, model: str, api_key: str) -> None:
        """`url` includes `/v1`. Raises SettingError, which quotes neither the URL nor the key."""
        if not _KEY.fullmatch(api_key):
            raise SettingError("PYOCO_DECISION_API_KEY has characters that no header may have")
        try:
            base = httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError, TypeError) as error:
            raise SettingError("PYOCO_DECISION_URL is not an address") from error
        if base.scheme not in {"http", "https"} or not base.host or not 0 < (base.port or 1) < 65_536:
            raise SettingError("PYOCO_DECISION_URL is not an address with a host, and perhaps a port")
        self._url = base.copy_with(path=base.path.rstrip("/") + "/chat/completions", fragment=None)
        self._model, self._api_key = model, api_key
        self._client = httpx2.Client(
            verify=httpx2.create_ssl_context(),
            trust_env=False,
            follow_redirects=False,
            auth=self._sign if api_key else None,
            # Unlimited, so that abandoned requests that have not ended yet do not block new ones.
            limits=httpx2.Limits(max_connections=None),
        )

    def close(self) -> None:
        self._client.close()

    def answer(self, ask: Ask, seconds: float, cancelled: threading.Event) -> DocumentAnswer:
        deadline = time.monotonic() + seconds - min(_RESERVE_SECONDS, seconds / 2)
        try:
            return self._with_retry(ask, deadline, cancelled)
        except _TooSlow as slow:
            is_away = slow.is_operators_fault or seconds >= _PATIENCE_SECONDS
            raise AnswererUnavailable(str(slow), is_operators_fault=is_away) from slow

    def _with_retry(self, ask: Ask, deadline: float, cancelled: threading.Event) -> DocumentAnswer:
        body = write_request(ask, self._model)
        try:
            return self._request(body, deadline, cancelled)
        except _Later as later:
            if later.pause_seconds > _PAUSE_SECONDS_MAX or time.monotonic() + 2 * later.pause_seconds >= deadline:
                raise AnswererUnavailable(str(later), is_operators_fault=True) from later
            if cancelled.wait(later.pause_seconds):
                raise NobodyWaits("the run was cancelled") from later
        try:
            return self._request(body, deadline, cancelled)
        except _Later as later:
            raise AnswererUnavailable(f"{later}, also on a second try", is_operators_fault=True) from later

    def _request(self, body: bytes, deadline: float, cancelled: threading.Event) -> DocumentAnswer:
        """Run the exchange in its own thread.

        Nothing else bounds a server that trickles bytes, or makes a cancel take effect.

        Giving up shuts the socket down, which ends the thread; a thread that is still connecting ends as soon as it has
        connected, or has failed to.
        """
        done: Future[DocumentAnswer] = Future()
        line = _Line()

        def exchange() -> None:
            try:
                done.set_result(self._exchange(body, deadline, line))
            except BaseException as error:  # noqa: BLE001  (top of a thread: the waiting caller re-raises it)
                done.set_exception(error)
            finally:
                line.close()

        threading.Thread(target=exchange, name="answerer", daemon=True).start()
        try:
            while True:
                left = deadline - time.monotonic()
                wait([done], timeout=max(0.0, min(_LISTEN_SECONDS, left)))
                if done.done():
                    return done.result()
                if cancelled.is_set():
                    raise NobodyWaits("the run was cancelled")
                if left <= 0:
                    raise _TooSlow(is_operators_fault=not line.is_connected)
        finally:
            line.cut()

    def _exchange(self, body: bytes, deadline: float, line: _Line) -> DocumentAnswer:
        left = max(_LISTEN_SECONDS, deadline - time.monotonic())
        with (
            _http_errors(),
            self._client.stream(
                "POST",
                self._url,
                content=body,
                # Uncompressed, which rules out decompression bombs.
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity", "Connection": "close"},
                timeout=httpx2.Timeout(left, connect=min(left, _CONNECT_SECONDS_MAX)),
                extensions={"trace": line.trace},
            ) as response,
        ):
            _check_status(response)
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise BadAnswer("the answer is compressed, although that was not wanted")
            return read_answer(b"".join(_bounded(response.iter_raw())))

    def _sign(self, request: httpx2.Request) -> httpx2.Request:
        request.headers["Authorization"] = f"Bearer {self._api_key}"
        return request


class _Line:
    """The connection of one exchange, which another thread may shut down.

    Holds a duplicate file descriptor: httpx2 hands its own socket over to TLS, and closes it at a time of its choosing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    @property
    def is_connected(self) -> bool:
        with self._lock:
            return self._socket is not None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Trace callback: httpx2 calls it at every step."""
        if event != "connection.connect_tcp.complete":
            return
        self.close()
        with self._lock:
            self._socket = info["return_value"].get_extra_info("socket").dup()
            self._shut()

    def cut(self) -> None:
        """Shut the connection down, now or as soon as it exists. Blocked reads and writes then return immediately."""
        with self._lock:
            self._is_cut = True
            self._shut()

    def _shut(self) -> None:
        if self._is_cut and self._socket is not None:
            with contextlib.suppress(OSError):  # the peer has already closed it
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


def _bounded(chunks: Iterator[bytes]) -> Generator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > ANSWER_BYTES_MAX:
            raise BadAnswer(f"the answer has more than {ANSWER_BYTES_MAX >> 20} MiB")
        yield chunk


def _check_status(response: httpx2.Response) -> None:
    status = response.status_code
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        detail = f"the answerer sends elsewhere (HTTP {status}), and redirects are not followed"
        raise AnswererRefused(detail, is_operators_fault=True)
    if status in {408, 429} or status >= 500:
        raise _Later(f"the answerer cannot answer now (HTTP {status})", _pause(response.headers.get("Retry-After")))
    detail = f"the answerer refused the question (HTTP {status})"
    raise AnswererRefused(detail, is_operators_fault=status in _MISUSES)


def _pause(retry_after: str | None) -> float:
    """Return the pause in seconds. A date in Retry-After is ignored: clocks differ."""
    return float(retry_after) if retry_after and _SECONDS.fullmatch(retry_after.strip()) else _PAUSE_SECONDS


@contextlib.contextmanager
def _http_errors() -> Iterator[None]:
    """The only place that translates errors of httpx2 into ours. Drops their text, which may quote the address."""
    try:
        yield
    except (httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise _Later("the answerer cannot be reached") from error
    except httpx2.TimeoutException as error:
        raise _TooSlow from error
    except httpx2.TransportError as error:
        raise _Later("the connection to the answerer failed") from error
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        raise BadAnswer("the answer cannot be read") from error
