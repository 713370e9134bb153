# Generated from aio_wire.py: python tools/make_sync_client.py
"""Sends calls over HTTP and reads their responses. The only module of this package that does network I/O."""

from __future__ import annotations

import hashlib
import io
import math
import os
import random
import ssl
import time
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar, cast

import httpx

from pyoco_server.client import calls
from pyoco_server.client.calls import Call, Repeat
from pyoco_server.client.faults import AnswerDamaged, Tries, read_answer
from pyoco_server.client.files import CHUNK_BYTES, Arrival, Readable, Source
from pyoco_server.client.forms import Form
from pyoco_server.client.io_sync import Chunks, Gate, Stream, hear_out, in_thread, pieces_of, sleep
from pyoco_server.client.job_form import JobForm
from pyoco_server.client.pack_result import Gathering, Signed, check_signed
from pyoco_server.client.resuming import Clocks, Resuming
from pyoco_server.client.retry import Patience
from pyoco_server.client.wheel_results import WheelArtifact

__all__ = ["Progress", "Uploaded", "Wire"]

T = TypeVar("T")

#: Called with the bytes transferred so far and the total, or None if the total is not known.
Progress = Callable[[int, int | None], object]
#: What can be uploaded.
Uploaded = bytes | bytearray | memoryview | str | os.PathLike[str] | Readable | Chunks

#: Concurrent calls; further ones wait. Event streams do not count: they are long-lived and mostly idle.
_CALLS_MAX = 100
_IDLE_MAX = 20


class Wire:
    """The connections to one gateway."""

    def __init__(
        self,
        base_url: str,
        headers: dict[str, str],
        timeout: float,
        patience: Patience,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Redirects are not followed: the headers are for this gateway only.

        A password in the URL is moved to a header, because URLs appear in logs and error texts.
        """
        url = httpx.URL(base_url)
        self.client = httpx.Client(
            base_url=url.copy_with(userinfo=b""),
            auth=httpx.BasicAuth(url.username, url.password) if url.userinfo else None,
            headers=headers,
            timeout=timeout,
            transport=transport,
            # Plain HTTP needs no CA certificates, and loading them takes 30 ms. This context trusts no CA.
            verify=True if url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_IDLE_MAX),
        )
        self.clocks = Clocks(steady=time.monotonic, wall=time.time, chance=random.random)
        self._timeout_seconds, self._patience = timeout, patience
        self._gate = Gate(_CALLS_MAX)
        self._transport = transport
        #: For servers other than the gateway: it sends no API key. None: not needed so far.
        self._keyless: httpx.Client | None = None

    def close(self) -> None:
        self.client.close()
        if self._keyless is not None:
            self._keyless.close()

    def call(self, call: Call[T], *, patience: Patience | None = None, ends_at: float = math.inf) -> T:
        """Send one call, with retries. Raises httpx.HTTPError, and TimeoutError at `ends_at`."""
        tries = Tries(self._patience if patience is None else patience, self.clocks.steady(), ends_at)
        while True:
            try:
                with self._gate:
                    return cast(T, read_answer(call, self.client.send(self._request(call, tries))))
            except httpx.HTTPError as error:
                if tries.were_unclear and call.if_gone is not None and _status_of(error) == 404:
                    return call.if_gone
                pause = self._pause(tries, error, call.repeat)
            sleep(pause)

    def events(self, resuming: Resuming[T]) -> Stream[T]:
        """Yield the items of an event stream, reconnecting until it is over. Raises httpx.HTTPError."""
        while not resuming.is_over():
            try:
                request = self._request(resuming.connect(), self._tries())
                request.extensions["timeout"] = resuming.limits(self._timeout_seconds)
                response = self.client.send(request, stream=True)
                try:
                    _check(response)
                    if not resuming.opened(response.status_code, response.headers.get("Content-Type", "")):
                        return
                    pieces = response.iter_bytes()
                    for data in pieces:
                        yield from resuming.feed(data)
                        if resuming.is_over():
                            hear_out(pieces)
                            return
                finally:
                    response.close()
                pause = resuming.pause_after_end()
            except httpx.HTTPError as error:
                pause = resuming.pause_after_failure(error)
            sleep(pause)

    def fetch(self, call: Call[None], file: BinaryIO, progress: Progress | None) -> tuple[int, str]:
        """Overwrite `file` with the response body. Returns its size and sha256, both checked."""
        tries = self._tries()
        while True:
            try:
                with self._gate:
                    return self._fetch_once(self._request(call, tries), file, progress)
            except httpx.HTTPError as error:
                pause = self._pause(tries, error, call.repeat)
            sleep(pause)

    def read_signed(self, signed: Signed) -> bytes:
        """Return the content of a signed URL after checking its sha256. Raises httpx.HTTPError."""
        data = io.BytesIO()
        self.fetch_signed(signed, data, None)
        return data.getvalue()

    def fetch_signed(self, signed: Signed, file: BinaryIO, progress: Progress | None) -> int:
        """Overwrite `file` with the content of a signed URL, after checking its sha256. Returns its size."""
        tries = self._tries()
        while True:
            try:
                with self._gate:
                    return self._fetch_signed_once(signed, tries, file, progress)
            except httpx.HTTPError as error:
                pause = self._pause(tries, error, Repeat.SAFE)
            sleep(pause)

    def upload(self, form: Form, data: Uploaded, progress: Progress | None) -> WheelArtifact:
        """Upload a wheel as a multipart form. Retried only if the data can be read again from its start."""
        if not isinstance(data, bytes | bytearray | memoryview | str | os.PathLike) and not hasattr(data, "read"):
            return self._upload_pieces(form, data, progress)
        source = in_thread(Source, cast(Any, data))
        try:
            return self._upload_source(form, source, progress)
        finally:
            source.close()

    def _upload_source(self, form: Form, source: Source, progress: Progress | None) -> WheelArtifact:
        tries = self._tries()
        call = calls.upload_wheel(form, None if source.size is None else form.length(source.size))
        while True:
            digest = hashlib.sha256()
            source.restart()
            body = _body(form, _chunks_of(source), digest, source.size, progress)
            try:
                with self._gate:
                    artifact = read_answer(call, self.client.send(self._request(call, tries, body)))
            except httpx.HTTPError as error:
                if tries.were_unclear and _status_of(error) == 409 and source.can_restart:
                    found = self._find_uploaded(form, in_thread(source.sha256_hex))
                    if found is not None:
                        return found
                pause = self._pause(tries, error, Repeat.SAFE if source.can_restart else Repeat.NEVER)
                sleep(pause)
            else:
                return _compared(artifact, digest.hexdigest())

    def _upload_pieces(self, form: Form, chunks: Chunks, progress: Progress | None) -> WheelArtifact:
        digest = hashlib.sha256()
        call = calls.upload_wheel(form, None)
        body = _body(form, pieces_of(chunks), digest, None, progress)
        with self._gate:
            artifact = read_answer(call, self.client.send(self._request(call, self._tries(), body)))
        return _compared(artifact, digest.hexdigest())

    def send_file(
        self,
        call: Call[T],
        data: bytes | bytearray | memoryview | str | os.PathLike[str] | Readable,
        progress: Progress | None,
    ) -> tuple[T, str]:
        """Send a call whose body is a file. Returns the answer and the sha256 of the bytes sent.

        Retried only if the file can be read again from its start.
        """
        source = in_thread(Source, data)
        try:
            return self._send_source(calls.with_length(call, source.size), source, progress)
        finally:
            source.close()

    def _send_source(self, call: Call[T], source: Source, progress: Progress | None) -> tuple[T, str]:
        tries = self._tries()
        while True:
            digest = hashlib.sha256()
            source.restart()
            body = _counted(_chunks_of(source), digest, source.size, progress)
            try:
                with self._gate:
                    answer = read_answer(call, self.client.send(self._request(call, tries, body)))
                return cast(T, answer), digest.hexdigest()
            except httpx.HTTPError as error:
                pause = self._pause(tries, error, Repeat.SAFE if source.can_restart else Repeat.NEVER)
            sleep(pause)

    def send_form(self, call: Call[T], form: JobForm, progress: Progress | None) -> T:
        """Send a call whose body is a form with files. Each attempt reads the files from their start."""
        tries = self._tries()
        while True:
            form.restart()
            body = _counted(pieces_of(form.pieces()), hashlib.sha256(), form.length, progress)
            try:
                with self._gate:
                    return cast(T, read_answer(call, self.client.send(self._request(call, tries, body))))
            except httpx.HTTPError as error:
                pause = self._pause(tries, error, call.repeat)
            sleep(pause)

    def _find_uploaded(self, form: Form, sha256_hex: str) -> WheelArtifact | None:
        """Return the registered wheel with this name and sha256; None if there is none.

        Called when a retry was refused as "not newer": an earlier attempt, whose response was lost, may have
        registered the wheel.
        """
        wheels = self.call(calls.list_wheels())
        return next((w for w in wheels if w["name"] == form.file_name and w.get("sha256_hex") == sha256_hex), None)

    def _fetch_once(self, request: httpx.Request, file: BinaryIO, progress: Progress | None) -> tuple[int, str]:
        response = self.client.send(request, stream=True)
        try:
            _check(response)
            arrival = Arrival(file, response.headers)
            for chunk in response.iter_bytes(CHUNK_BYTES):
                in_thread(arrival.write, chunk)
                if progress is not None:
                    progress(arrival.count, arrival.size)
            return arrival.count, arrival.check()
        finally:
            response.close()

    def _fetch_signed_once(self, signed: Signed, tries: Tries, file: BinaryIO, progress: Progress | None) -> int:
        """Requests the stored bytes: the digest of a compressed transfer would differ."""
        path = signed.path_at(self.client.base_url)
        client, url = (self._open_keyless(), signed.url) if path is None else (self.client, path)
        timeout = tries.timeout_seconds(self._timeout_seconds, self.clocks.steady())
        request = client.build_request("GET", url, headers={"Accept-Encoding": "identity"}, timeout=timeout)
        response = client.send(request, stream=True)
        try:
            if not response.is_success:
                response.read()
            check_signed(response)
            gathering = Gathering(signed, file, response.headers)
            for chunk in response.iter_bytes(CHUNK_BYTES):
                in_thread(gathering.write, chunk)
                if progress is not None:
                    progress(gathering.count, gathering.size)
            gathering.check()
            return gathering.count
        finally:
            response.close()

    def _open_keyless(self) -> httpx.Client:
        if self._keyless is None:
            self._keyless = httpx.Client(timeout=self._timeout_seconds, transport=self._transport)
        return self._keyless

    def _request(self, call: Call[Any], tries: Tries, body: Any = None) -> httpx.Request:
        return self.client.build_request(
            call.method,
            call.path,
            params=call.query or None,
            headers=call.headers,
            content=call.content if body is None else body,
            timeout=tries.timeout_seconds(self._timeout_seconds, self.clocks.steady()),
        )

    def _tries(self) -> Tries:
        return Tries(self._patience, self.clocks.steady())

    def _pause(self, tries: Tries, error: httpx.HTTPError, repeat: Repeat) -> float:
        clocks = self.clocks
        return tries.pause_after(error, repeat, at=clocks.steady(), now=clocks.wall(), chance=clocks.chance())


def _check(response: httpx.Response) -> None:
    """Raise HTTPStatusError for an error response, after reading its body (FLOW-415)."""
    if not response.is_success:
        response.read()
        response.raise_for_status()


def _chunks_of(source: Source) -> Stream[bytes]:
    while chunk := in_thread(source.read):
        yield chunk


def _body(form: Form, chunks: Stream[bytes], digest: Any, size: int | None, progress: Progress | None) -> Stream[bytes]:
    """Yield the head of the form, the chunks of the file, and the tail of the form."""
    yield form.head
    yield from _counted(chunks, digest, size, progress)
    yield form.tail


def _counted(chunks: Stream[bytes], digest: Any, size: int | None, progress: Progress | None) -> Stream[bytes]:
    """Pass the chunks through. A chunk is hashed and counted once the next one is requested."""
    done = 0
    for chunk in chunks:
        if not chunk:
            continue
        yield chunk
        digest.update(chunk)
        done += len(chunk)
        if progress is not None:
            progress(done, size)


def _compared(artifact: Any, sha256_hex: str) -> WheelArtifact:
    found = artifact.get("sha256_hex")
    if found != sha256_hex:
        raise AnswerDamaged(f"the wheel is registered with the sha256 {found}, and {sha256_hex} was sent")
    return cast(WheelArtifact, artifact)


def _status_of(error: httpx.HTTPError) -> int | None:
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
