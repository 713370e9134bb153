"""Every operation of the HTTP API, for asyncio. The synchronous twin, `sync.py`, is made from this file."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, BinaryIO, Self, Unpack, cast

import httpx

from pyoco_server.client import calls
from pyoco_server.client.aio_jobs import AsyncJobs
from pyoco_server.client.aio_priced import AsyncPricedRuns
from pyoco_server.client.aio_wire import AsyncWire, Progress, Uploaded
from pyoco_server.client.connection import access
from pyoco_server.client.dead_letter_results import (
    DlqCounts,
    DlqMessageDeleted,
    DlqMessageDetail,
    DlqMessageRedriven,
    DlqMessagesDeleted,
    DlqMessagesRedriven,
    DlqPage,
    LettersDeletedBy,
    LettersRedrivenBy,
)
from pyoco_server.client.files import Landing
from pyoco_server.client.io_async import Stream, aclosing, in_thread, sleep
from pyoco_server.client.job_calls import program_filters
from pyoco_server.client.job_results import RunsOfPrograms
from pyoco_server.client.results import Attention, Health, Queues, Ready, RecentMetrics, WorkerPatched, WorkerRecord
from pyoco_server.client.retry import Patience
from pyoco_server.client.run_results import (
    RunAccepted,
    RunBatchAnswer,
    RunBatchItem,
    RunChange,
    RunListResponse,
    RunRepeated,
    RunsCancelled,
    RunsCancelledBy,
    RunSnapshot,
    RunSummary,
    RunTasks,
    RunWatchEvent,
)
from pyoco_server.client.waiting import Waiting
from pyoco_server.client.watching import Watching
from pyoco_server.client.wheel_results import WheelArtifact, WheelDeleted, WheelDownloaded, WheelHistoryEvent
from pyoco_server.errors import CATALOGUE, TooManyWatchers

__all__ = ["AsyncPyocoHttpClient"]

#: FLOW-416
_WAIT_SECONDS = 60.0
#: With these no second try is made for an event stream: a look now and then does as well.
_NO_ROOM = frozenset({CATALOGUE[TooManyWatchers.number].err_id})


class AsyncPyocoHttpClient(AsyncPricedRuns, AsyncJobs):
    """A client of one gateway, for asyncio.

    A gateway's error is an `httpx.HTTPStatusError` with the gateway's words in `error.response.json()`; no connection,
    or a broken one, is an `httpx.TransportError`. Calls that may be repeated are repeated: every submission carries an
    idempotency key, so it counts once however often it is sent.

    `timeout` is how long a server may say nothing, in seconds, while connecting, sending or answering. `retries` is
    how often a call is tried again, `retry_seconds` for how long after its beginning (as long as `timeout`, unless
    given); it is also how long a watch or a wait puts up with a server that is away, unless it is given a patience of
    its own.

    Without `base_url` the client finds its server as `pyoco-client` does: PYOCO_SERVER_URL, the config file, then the
    server that runs on this machine. The key comes from PYOCO_API_KEY or the config file unless it is given.

    >>> async with AsyncPyocoHttpClient("http://127.0.0.1:8000") as client:  # doctest: +SKIP
    ...     run = await client.submit_run("hello", params={"name": "you"})
    ...     print((await client.wait_run(run["run_id"]))["status"])
    COMPLETED
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_header: str = "X-API-Key",
        timeout: float = 30.0,
        *,
        retries: int = 3,
        retry_seconds: float | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Sends nothing yet. Raises ValueError and httpx.InvalidURL for bad arguments; without an address, UsageError
        for a bad config file, and SeveralServers."""
        place = access(base_url, api_key, api_key_header)
        patience = Patience(retries, timeout if retry_seconds is None else retry_seconds)
        headers = calls.key_headers(place.api_key, place.api_key_header)
        self._wire = AsyncWire(place.base_url, headers, timeout, patience, transport)
        self._patience = patience

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._wire.client.base_url)!r})"

    async def close(self) -> None:
        """Hang up. Calling it twice is harmless."""
        await self._wire.close()

    # The gateway

    async def health(self) -> Health:
        """Is the gateway alive? Asked once: no answer is an answer, too."""
        return await self._wire.call(calls.health())

    async def ready(self) -> Ready:
        """Can the gateway take work? Asked once; 503 when it cannot."""
        return await self._wire.call(calls.ready())

    async def get_metrics(self) -> str:
        """The figures of this moment, in the text format of Prometheus."""
        return await self._wire.call(calls.get_metrics())

    async def get_recent_metrics(self, after: float | None = None) -> RecentMetrics:
        """What happened in the last hour, in steps of ten seconds. `after`: only steps that began later than this."""
        return await self._wire.call(calls.get_recent_metrics(after))

    async def list_queues(self) -> Queues:
        """What waits, by tag, the longest queues first; and who serves them."""
        return await self._wire.call(calls.list_queues())

    async def get_attention(self) -> Attention:
        """What a person should look at, the most urgent first."""
        return await self._wire.call(calls.get_attention())

    # Runs

    async def submit_run(
        self,
        flow_name: str,
        params: dict[str, Any] | None = None,
        tag: str | None = None,
        tags: Sequence[str] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> RunAccepted:
        """Run a flow that the workers know by name. When this returns the run is recorded and queued."""
        asked = {"flow_name": flow_name, "params": params, "tag": tag, "tags": calls.words(tags)}
        return await self._wire.call(calls.submit_run(asked, idempotency_key))

    async def submit_run_yaml(
        self, workflow_yaml: str, tag: str, flow_name: str = "main", *, idempotency_key: str | None = None
    ) -> RunAccepted:
        """Run an uploaded flow, given as text. Its params are the file's `flow.defaults`."""
        return await self._wire.call(calls.submit_run_yaml(workflow_yaml, flow_name, tag, idempotency_key))

    async def submit_batch(self, runs: Sequence[RunBatchItem], *, idempotency_key: str | None = None) -> RunBatchAnswer:
        """Submit up to 1,000 runs of named flows at once. One that is refused does not stop the others."""
        return await self._wire.call(calls.submit_batch(runs, idempotency_key))

    async def rerun_run(
        self, run_id: str, *, idempotency_key: str | None = None, **change: Unpack[RunChange]
    ) -> RunRepeated:
        """Run the same submission again, with other `params`, `tag` or `tags` if given. The old run stays as it is."""
        return await self._wire.call(calls.rerun_run(run_id, change, idempotency_key))

    async def get_run(self, run_id: str, include: Sequence[str] | None = None) -> RunSnapshot:
        """The latest state of a run. `include=["records"]`: with what is known of each task."""
        return await self._wire.call(calls.get_run(run_id, include))

    async def get_tasks(self, run_id: str) -> RunTasks:
        """The tasks of a run, with what is known of each."""
        return await self._wire.call(calls.get_tasks(run_id))

    async def list_runs(  # noqa: PLR0913  (FLOW-410)
        self,
        status: str | None = None,
        flow: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
        include: Sequence[str] | None = None,
        workflow_yaml_sha256: str | None = None,
        *,
        kind: str | None = None,
        run_id: str | None = None,
        **program: Unpack[RunsOfPrograms],
    ) -> list[RunSummary]:
        """The newest runs that fit, newest update first; 50 unless `limit` says otherwise, 200 at most. `run_id` is how
        an id begins, with four characters or more. Jobs of programs are found by `exec_name`, `client_id`, `job_id` and
        `group`, too."""
        filters = calls.run_filters(status, flow, tag, include, workflow_yaml_sha256, kind, run_id)
        return await self._wire.call(calls.list_runs({**filters, **program_filters(program), "limit": limit}))

    async def list_runs_vnext(  # noqa: PLR0913, PLR0917  (FLOW-411)
        self,
        status: str | None = None,
        flow: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
        include: Sequence[str] | None = None,
        workflow_yaml_sha256: str | None = None,
        updated_after: float | None = None,
        cursor: str | None = None,
        *,
        kind: str | None = None,
        run_id: str | None = None,
        **program: Unpack[RunsOfPrograms],
    ) -> RunListResponse:
        """One page of runs. `next_cursor`, given as `cursor` with the same filters, brings the next one."""
        filters = calls.run_filters(status, flow, tag, include, workflow_yaml_sha256, kind, run_id)
        asked = {**filters, **program_filters(program), "limit": limit}
        asked |= {"updated_after": updated_after, "cursor": cursor}
        return await self._wire.call(calls.list_runs_vnext(asked))

    async def iter_runs(  # noqa: PLR0913  (as the lists)
        self,
        status: str | None = None,
        flow: str | None = None,
        tag: str | None = None,
        include: Sequence[str] | None = None,
        workflow_yaml_sha256: str | None = None,
        updated_after: float | None = None,
        *,
        kind: str | None = None,
        run_id: str | None = None,
        page_size: int = 200,
        **program: Unpack[RunsOfPrograms],
    ) -> Stream[RunSummary]:
        """Every run that fits, page by page, each page when it is needed. A run that changes meanwhile comes once."""
        filters = calls.run_filters(status, flow, tag, include, workflow_yaml_sha256, kind, run_id)
        asked = {**filters, **program_filters(program), "limit": page_size, "updated_after": updated_after}
        cursor: str | None = None
        while True:
            page = await self._wire.call(calls.list_runs_vnext({**asked, "cursor": cursor}))
            for run in page["items"]:
                yield run
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def watch_run(
        self,
        run_id: str,
        include: Sequence[str] | None = None,
        since: float | None = None,
        timeout_sec: float | None = None,
        *,
        patience_sec: float | None = None,
    ) -> Stream[RunWatchEvent]:
        """The run as it changes: its state now, every change, a heartbeat every five seconds, until it has ended.

        A connection that breaks or falls silent is replaced, and nothing is told twice. It ends after `timeout_sec`,
        too, if given; raises TimeoutError when nothing was heard until then. A server that is away for `retry_seconds`
        is an error; one that has answered before may be away for `patience_sec`, if given (`math.inf`: for ever).
        Closing the iterator hangs up.
        """
        watching = self._watching(
            run_id, include=include, since=since, timeout_sec=timeout_sec, patience_sec=patience_sec
        )
        async with aclosing(self._wire.events(watching)) as events:
            async for event in events:
                yield event

    async def wait_run(
        self, run_id: str, timeout_sec: float | None = None, *, patience_sec: float | None = None
    ) -> RunSnapshot:
        """The run once it has ended. Raises TimeoutError when it has not after `timeout_sec` (60 s unless given).

        A server that has answered may be away for `patience_sec` in between, if given, before that is an error.
        """
        seconds = _WAIT_SECONDS if timeout_sec is None else timeout_sec
        waiting = Waiting(run_id=run_id, clocks=self._wire.clocks, seconds=seconds)
        patience = self._patience if patience_sec is None else self._patience.lasting(patience_sec)
        look = calls.get_run(run_id, None)
        try:
            snapshot = await self._wire.call(look, ends_at=waiting.first_look_ends_at)
            while not waiting.ends_with(snapshot):
                if waiting.may_listen():
                    snapshot = await self._follow(snapshot, waiting)
                else:
                    await sleep(waiting.pause())
                    snapshot = await self._wire.call(look, patience=patience, ends_at=waiting.ends_at)
        except TimeoutError as error:
            raise TimeoutError(waiting.told(str(error))) from error.__cause__
        return snapshot

    async def cancel_run(
        self, run_id: str, wait: bool = False, timeout_sec: float | None = None, *, reason: str | None = None
    ) -> RunSnapshot:
        """Ask for a run to be stopped. `wait`: returns when it has ended, or raises TimeoutError, as `wait_run`."""
        snapshot = await self._wire.call(calls.cancel_run(run_id, reason))
        return await self.wait_run(run_id, timeout_sec) if wait else snapshot

    async def cancel_runs(self, **chosen: Unpack[RunsCancelledBy]) -> RunsCancelled:
        """Ask for many runs to be stopped: by filter, by `run_ids`, or `all=True`. `more`: ask again."""
        return await self._wire.call(calls.cancel_runs(chosen))

    # Workers

    async def list_workers(
        self,
        scope: str | None = None,
        state: str | None = None,
        include_hidden: bool | None = None,
        limit: int | None = None,
        *,
        tag: str | None = None,
    ) -> list[WorkerRecord]:
        """The workers that are there, those heard of last first. `scope="all"`: stopped and silent ones, too."""
        asked = {"scope": scope, "state": state, "include_hidden": include_hidden, "limit": limit, "tag": tag}
        return await self._wire.call(calls.list_workers(asked))

    async def get_worker(self, worker_id: str) -> WorkerRecord:
        """What is known of a worker, hidden or not."""
        return await self._wire.call(calls.get_worker(worker_id))

    async def patch_worker(self, worker_id: str, hidden: bool) -> WorkerPatched:
        """Hide a worker from lists, or show it again. A hidden worker goes on taking jobs."""
        return await self._wire.call(calls.patch_worker(worker_id, hidden))

    # Dead letters

    async def list_letters(  # noqa: PLR0913  (a filter each)
        self,
        reason: str | None = None,
        flow: str | None = None,
        tag: str | None = None,
        run_id: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        *,
        exec_name: str | None = None,
        client_id: str | None = None,
        group: str | None = None,
    ) -> DlqPage:
        """One page of dead letters, newest first. `next_cursor`, given as `cursor`, brings the next one."""
        asked = {"reason": reason, "flow": flow, "tag": tag, "run_id": run_id, "limit": limit, "cursor": cursor}
        asked |= {"exec": exec_name, "client_id": client_id, "group": group}
        return await self._wire.call(calls.list_letters(asked))

    async def count_letters(self) -> DlqCounts:
        """How many dead letters there are, by reason and flow."""
        return await self._wire.call(calls.count_letters())

    async def get_letter(self, letter_id: str) -> DlqMessageDetail:
        """A dead letter, and whether it can be redriven."""
        return await self._wire.call(calls.get_letter(letter_id))

    async def redrive_letter(self, letter_id: str, **change: Unpack[RunChange]) -> DlqMessageRedriven:
        """What its run was submitted with becomes a new run, and the letter is deleted."""
        return await self._wire.call(calls.redrive_letter(letter_id, change))

    async def redrive_letters(self, **chosen: Unpack[LettersRedrivenBy]) -> DlqMessagesRedriven:
        """Redrive many dead letters: by filter, or `all=True`. `more`: go on with `next_cursor` as `cursor`."""
        return await self._wire.call(calls.redrive_letters(chosen))

    async def delete_letter(self, letter_id: str) -> DlqMessageDeleted:
        """Delete a dead letter. Its run stays as it is."""
        return await self._wire.call(calls.delete_letter(letter_id))

    async def delete_letters(self, **chosen: Unpack[LettersDeletedBy]) -> DlqMessagesDeleted:
        """Delete many dead letters: by filter, or `all=True`. `more`: there are more, ask again."""
        return await self._wire.call(calls.delete_letters(chosen))

    # Wheels

    async def list_wheels(self) -> list[WheelArtifact]:
        """The registered wheels."""
        return await self._wire.call(calls.list_wheels())

    async def list_wheel_history(
        self, limit: int | None = None, wheel_name: str | None = None, action: str | None = None
    ) -> list[WheelHistoryEvent]:
        """Uploads and deletions, newest first; 100 unless `limit` says otherwise, 500 at most."""
        asked = {"limit": limit, "wheel_name": wheel_name, "action": action}
        return await self._wire.call(calls.list_wheel_history(asked))

    async def upload_wheel(
        self,
        filename: str,
        data: Uploaded,
        replace: bool = True,
        tags: Sequence[str] | None = None,
        *,
        progress: Progress | None = None,
    ) -> WheelArtifact:
        """Register a wheel for workers with one of these tags, or for all of them.

        `data` is bytes, a path, an open file or chunks of bytes; it is sent as it is read, and the answer's sha256 is
        compared with what was sent. What can be read once more from its beginning is tried again, as other calls are.
        `progress` is called with the bytes sent so far and with all there are, or None.
        """
        return await self._wire.upload(calls.wheel_form(filename, replace, tags), data, progress)

    async def get_wheel(self, wheel_name: str) -> bytes:
        """The bytes of a wheel, their sha256 compared. For a large one take `download_wheel`."""
        buffer = io.BytesIO()
        await self._wire.fetch(calls.fetch_wheel(wheel_name), buffer, None)
        return buffer.getvalue()

    async def download_wheel(
        self, wheel_name: str, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> WheelDownloaded:
        """A wheel into a file, or into a folder under its own name. The file appears when it is whole and compared."""
        with Landing(path, wheel_name) as landing:
            size, sha256_hex = await self._wire.fetch(
                calls.fetch_wheel(wheel_name), cast(BinaryIO, landing.file), progress
            )
            await in_thread(landing.settle)
        return {"name": wheel_name, "path": str(landing.path), "size_bytes": size, "sha256_hex": sha256_hex}

    async def delete_wheel(self, wheel_name: str) -> WheelDeleted:
        """Take a wheel out of the registry. Workers that synchronise remove it."""
        return await self._wire.call(calls.delete_wheel(wheel_name))

    # What they share

    async def _follow(self, snapshot: RunSnapshot, waiting: Waiting) -> RunSnapshot:
        """The newest state that a watch tells; the one given when no watch can be had.

        The gateway may have no room, or a proxy may let no stream through. Whether it is there at all, a plain look
        will tell: who has found no stream before makes one try.
        """
        watching = self._watching(waiting.run_id, timeout_sec=waiting.listen_seconds(), final_errors=_NO_ROOM)
        if waiting.has_listened:
            watching.retry_seconds = 0.0
        try:
            async with aclosing(self._wire.events(watching)) as events:
                async for event in events:
                    snapshot = event["snapshot"]
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
        except (httpx.TransportError, TimeoutError):
            pass
        waiting.listened()
        return snapshot

    def _watching(self, run_id: str, **asked: Any) -> Watching:
        return Watching(run_id=run_id, clocks=self._wire.clocks, retry_seconds=self._patience.seconds, **asked)
