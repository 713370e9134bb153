"""Every operation of the HTTP API, for asyncio. The synchronous twin, `sync.py`, is made from this file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, BinaryIO, Self, Unpack, cast

import httpx

from pyoco_server.client import calls
from pyoco_server.client.aio_jobs import AsyncJobs
from pyoco_server.client.aio_outputs import AsyncOutputs
from pyoco_server.client.aio_priced import AsyncPricedRuns
from pyoco_server.client.aio_schedules import AsyncSchedules
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
from pyoco_server.client.flow_results import FlowList, FlowShown
from pyoco_server.client.io_async import Stream, aclosing, in_thread, sleep
from pyoco_server.client.job_calls import program_filters
from pyoco_server.client.job_results import RunsOfPrograms
from pyoco_server.client.log_reading import LogFollowing, LogPages, fixed_filters
from pyoco_server.client.log_results import LogFilters, LogLine
from pyoco_server.client.results import Attention, Health, Queues, Ready, RecentMetrics, WorkerPatched, WorkerRecord
from pyoco_server.client.retry import Patience
from pyoco_server.client.run_results import (
    RunAccepted,
    RunBatchAnswer,
    RunBatchItem,
    RunChange,
    RunListResponse,
    RunOptions,
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
#: Errors after which the event stream is not reopened; occasional polling replaces it.
_NO_ROOM = frozenset({CATALOGUE[TooManyWatchers.number].err_id})


class AsyncPyocoHttpClient(AsyncPricedRuns, AsyncJobs, AsyncOutputs, AsyncSchedules):
    """A client of one gateway, for asyncio.

    An error response raises `httpx.HTTPStatusError`; `error.response.json()` is the gateway's error document. A failed
    or broken connection raises `httpx.TransportError`. Calls that are safe to repeat are retried: every submission
    carries an idempotency key, so it is accepted once even if it is sent several times.

    `timeout` is the limit in seconds for each connect, read and write. `retries` is the maximum number of retries of a
    call, and `retry_seconds` the time after its first attempt in which they may start (default: `timeout`).
    `retry_seconds` is also how long a watch or a wait tolerates an unavailable server, unless it is given its own
    `patience_sec`.

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
        """Send nothing yet.

        Raises ValueError and httpx.InvalidURL for bad arguments. Without an address, also raises UsageError for an
        invalid config file and SeveralServers if several local servers run.
        """
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
        """Close all connections. May be called more than once."""
        await self._wire.close()

    # The gateway

    async def health(self) -> Health:
        """Check that the gateway is alive. Never retried: a failure is the result."""
        return await self._wire.call(calls.health())

    async def ready(self) -> Ready:
        """Check that the gateway accepts work. Never retried; the gateway answers 503 if it does not."""
        return await self._wire.call(calls.ready())

    async def get_metrics(self) -> str:
        """Return the current metrics in the Prometheus text format."""
        return await self._wire.call(calls.get_metrics())

    async def get_recent_metrics(self, after: float | None = None) -> RecentMetrics:
        """Return the metrics of the last hour in steps of ten seconds. `after`: only steps that began later."""
        return await self._wire.call(calls.get_recent_metrics(after))

    async def list_queues(self) -> Queues:
        """Return the waiting runs and the workers of each tag, longest queue first."""
        return await self._wire.call(calls.list_queues())

    async def get_attention(self) -> Attention:
        """Return the problems that need a person's attention, most urgent first."""
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
        **options: Unpack[RunOptions],
    ) -> RunAccepted:
        """Run a flow that the workers know by name. The run is recorded and queued when this returns.

        With `delay` or `not_before` it is recorded, and queued at its time. `retry` takes precedence over what the flow
        says; None means no retry.
        """
        asked = {"flow_name": flow_name, "params": params, "tag": tag, "tags": calls.words(tags), **options}
        return await self._wire.call(calls.submit_run(asked, idempotency_key))

    async def submit_run_yaml(
        self,
        workflow_yaml: str,
        tag: str,
        flow_name: str = "main",
        *,
        idempotency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> RunAccepted:
        """Run a flow that is uploaded as YAML text. Its params are the file's `flow.defaults`."""
        fields = {"flow_name": flow_name, "tag": tag, **options}
        return await self._wire.call(calls.submit_run_yaml(workflow_yaml, fields, idempotency_key))

    async def submit_batch(self, runs: Sequence[RunBatchItem], *, idempotency_key: str | None = None) -> RunBatchAnswer:
        """Submit up to 1,000 runs of named flows in one request. A refused run does not stop the others."""
        return await self._wire.call(calls.submit_batch(runs, idempotency_key))

    async def rerun_run(
        self, run_id: str, *, idempotency_key: str | None = None, **change: Unpack[RunChange]
    ) -> RunRepeated:
        """Submit the same run again, with other `params`, `tag` or `tags` if given. The old run is not changed.

        `delay` or `not_before` delays the new run; the delay of the old one is not repeated. `retry` and `timeout` are
        those of the old one unless others are given.
        """
        return await self._wire.call(calls.rerun_run(run_id, change, idempotency_key))

    async def get_run(self, run_id: str, include: Sequence[str] | None = None) -> RunSnapshot:
        """Return the latest state of a run. `include=["records"]` adds the task records."""
        return await self._wire.call(calls.get_run(run_id, include))

    async def get_tasks(self, run_id: str) -> RunTasks:
        """Return the tasks of a run with their records."""
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
        search: str | None = None,
        **program: Unpack[RunsOfPrograms],
    ) -> list[RunSummary]:
        """Return the matching runs, most recently updated first: 50 by default, at most 200 (`limit`).

        `run_id` is a prefix of at least four characters. `search` finds words in flow names, tags, labels, params and
        errors, and run ids by their beginning. Jobs of programs can also be filtered by `exec_name`, `client_id`,
        `job_id` and `group`.
        """
        filters = calls.run_filters(status, flow, tag, include, workflow_yaml_sha256, kind, run_id, search)
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
        search: str | None = None,
        **program: Unpack[RunsOfPrograms],
    ) -> RunListResponse:
        """Return one page of runs. For the next page pass its `next_cursor` as `cursor`, with the same filters."""
        filters = calls.run_filters(status, flow, tag, include, workflow_yaml_sha256, kind, run_id, search)
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
        search: str | None = None,
        page_size: int = 200,
        **program: Unpack[RunsOfPrograms],
    ) -> Stream[RunSummary]:
        """Yield all matching runs, fetching pages as needed. A run that changes meanwhile is yielded only once."""
        filters = calls.run_filters(status, flow, tag, include, workflow_yaml_sha256, kind, run_id, search)
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
        """Yield the current state of a run, every change, and a heartbeat every five seconds, until the run has ended.

        A broken or silent connection is replaced without repeating events. The watch also ends after `timeout_sec`, if
        given; it raises TimeoutError if no event was received by then. A server that is unavailable for
        `retry_seconds` is an error; one that has answered before may be unavailable for `patience_sec`, if given
        (`math.inf`: without limit). Closing the iterator closes the connection.
        """
        watching = self._watching(
            run_id, include=include, since=since, timeout_sec=timeout_sec, patience_sec=patience_sec
        )
        async with aclosing(self._wire.events(watching)) as events:
            async for event in events:
                yield event

    async def wait_run(
        self,
        run_id: str,
        timeout_sec: float | None = None,
        *,
        patience_sec: float | None = None,
        progress: Callable[[RunSnapshot], object] | None = None,
    ) -> RunSnapshot:
        """Wait until the run has ended and return it. Raises TimeoutError after `timeout_sec` (default: 60 s).

        A server that has answered before may be unavailable for `patience_sec`, if given, before that is an error.
        `progress` is called with each state of the run before the end, at least every few seconds.
        """
        seconds = _WAIT_SECONDS if timeout_sec is None else timeout_sec
        waiting = Waiting(run_id=run_id, clocks=self._wire.clocks, seconds=seconds, progress=progress)
        patience = self._patience if patience_sec is None else self._patience.lasting(patience_sec)
        reading = calls.get_run(run_id, None)
        try:
            snapshot = await self._wire.call(reading, ends_at=waiting.first_look_ends_at)
            while not waiting.ends_with(snapshot):
                if waiting.may_listen():
                    snapshot = await self._follow(snapshot, waiting)
                else:
                    await sleep(waiting.pause())
                    snapshot = await self._wire.call(reading, patience=patience, ends_at=waiting.ends_at)
        except TimeoutError as error:
            raise TimeoutError(waiting.timeout_message(str(error))) from error.__cause__
        return snapshot

    async def run_logs(
        self,
        run_id: str,
        follow: bool = False,
        *,
        timeout_sec: float | None = None,
        patience_sec: float | None = None,
        **filters: Unpack[LogFilters],
    ) -> Stream[LogLine]:
        """Yield the lines that a run has printed, by attempt and sequence; `follow`: and new ones, until the run ends.

        The lines of a long log are requested as they are needed. A connection that breaks while following is replaced:
        no line is lost or repeated. Following also ends after `timeout_sec`, if given; it raises TimeoutError if the
        server was not reached by then. `patience_sec` is that of `watch_run`. Lines that are missing are reported by a
        line with `event: gap`. Raises ValueError for a bad duration.
        """
        chosen = fixed_filters(filters, self._wire.clocks.wall())
        if follow:
            following = LogFollowing(
                run_id=run_id,
                clocks=self._wire.clocks,
                retry_seconds=self._patience.seconds,
                patience_sec=patience_sec,
                timeout_sec=timeout_sec,
                filters=chosen,
            )
            async with aclosing(self._wire.events(following)) as lines:
                async for line in lines:
                    yield line
            return
        pages = LogPages(run_id=run_id, filters=chosen)
        while not pages.is_over:
            for line in pages.take(await self._wire.call(pages.request())):
                yield line

    async def start_run(self, run_id: str) -> RunSnapshot:
        """Start a run that waits for its time now: a delayed one, or one that waits for its next try."""
        return await self._wire.call(calls.start_run(run_id))

    async def cancel_run(
        self,
        run_id: str,
        wait: bool = False,
        timeout_sec: float | None = None,
        *,
        reason: str | None = None,
        grace_sec: float | None = None,
    ) -> RunSnapshot:
        """Request the cancellation of a run. `wait`: wait until it has ended, or raise TimeoutError, as `wait_run`.

        The work is killed after `grace_sec` seconds unless it stops before; a repeated request may only shorten them.
        """
        snapshot = await self._wire.call(calls.cancel_run(run_id, reason, grace_sec))
        return await self.wait_run(run_id, timeout_sec) if wait else snapshot

    async def cancel_runs(self, **chosen: Unpack[RunsCancelledBy]) -> RunsCancelled:
        """Request the cancellation of many runs: by filter, by `run_ids`, or `all=True`. If `more` is set, repeat."""
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
        """Return the active workers, most recently seen first. `scope="all"` adds stopped and disconnected ones."""
        asked = {"scope": scope, "state": state, "include_hidden": include_hidden, "limit": limit, "tag": tag}
        return await self._wire.call(calls.list_workers(asked))

    async def list_flows(
        self,
        *,
        tag: str | None = None,
        search: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> FlowList:
        """Return a page of the flows that live workers announce, by name.

        `search`: words that name, app or doc contain. Pass `next_cursor` with the same filters for the next page.
        """
        filters = {"tag": tag, "q": search, "limit": limit, "cursor": cursor}
        return await self._wire.call(calls.list_flows(filters))

    async def get_flow(self, name: str) -> FlowShown:
        """Return a flow that live workers announce. The gateway answers 404 if none does."""
        return await self._wire.call(calls.get_flow(name))

    async def get_worker(self, worker_id: str) -> WorkerRecord:
        """Return the record of a worker, hidden or not."""
        return await self._wire.call(calls.get_worker(worker_id))

    async def patch_worker(self, worker_id: str, hidden: bool) -> WorkerPatched:
        """Hide a worker from lists, or show it again. A hidden worker continues to take jobs."""
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
        """Return one page of dead letters, newest first. For the next page pass its `next_cursor` as `cursor`."""
        asked = {"reason": reason, "flow": flow, "tag": tag, "run_id": run_id, "limit": limit, "cursor": cursor}
        asked |= {"exec": exec_name, "client_id": client_id, "group": group}
        return await self._wire.call(calls.list_letters(asked))

    async def count_letters(self) -> DlqCounts:
        """Count the dead letters by reason and flow."""
        return await self._wire.call(calls.count_letters())

    async def get_letter(self, letter_id: str) -> DlqMessageDetail:
        """Return a dead letter and whether it can be redriven."""
        return await self._wire.call(calls.get_letter(letter_id))

    async def redrive_letter(self, letter_id: str, **change: Unpack[RunChange]) -> DlqMessageRedriven:
        """Submit the dead letter's run again as a new run, and delete the dead letter."""
        return await self._wire.call(calls.redrive_letter(letter_id, change))

    async def redrive_letters(self, **chosen: Unpack[LettersRedrivenBy]) -> DlqMessagesRedriven:
        """Redrive many dead letters: by filter, or `all=True`. If `more` is set, pass `next_cursor` as `cursor`."""
        return await self._wire.call(calls.redrive_letters(chosen))

    async def delete_letter(self, letter_id: str) -> DlqMessageDeleted:
        """Delete a dead letter. Its run is not changed."""
        return await self._wire.call(calls.delete_letter(letter_id))

    async def delete_letters(self, **chosen: Unpack[LettersDeletedBy]) -> DlqMessagesDeleted:
        """Delete many dead letters: by filter, or `all=True`. If `more` is set, repeat."""
        return await self._wire.call(calls.delete_letters(chosen))

    # Wheels

    async def list_wheels(self) -> list[WheelArtifact]:
        """Return the registered wheels."""
        return await self._wire.call(calls.list_wheels())

    async def list_wheel_history(
        self, limit: int | None = None, wheel_name: str | None = None, action: str | None = None
    ) -> list[WheelHistoryEvent]:
        """Return uploads and deletions, newest first: 100 by default, at most 500 (`limit`)."""
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
        """Register a wheel for workers with one of these tags; without tags, for all workers.

        `data` is bytes, a path, an open file or an iterable of bytes. It is streamed, and the sha256 in the response is
        compared with what was sent. The upload is retried like other calls if `data` can be read again from its start.
        `progress` is called with the bytes sent so far and the total, or None if the total is not known.
        """
        return await self._wire.upload(calls.wheel_form(filename, replace, tags), data, progress)

    async def get_wheel(self, wheel_name: str) -> bytes:
        """Return the bytes of a wheel after checking their sha256. Use `download_wheel` for large wheels."""
        buffer = io.BytesIO()
        await self._wire.fetch(calls.fetch_wheel(wheel_name), buffer, None)
        return buffer.getvalue()

    async def download_wheel(
        self, wheel_name: str, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> WheelDownloaded:
        """Save a wheel to a file, or to a folder under its own name.

        The file appears only when it is complete and its sha256 has been checked.
        """
        with Landing(path, wheel_name) as landing:
            size, sha256_hex = await self._wire.fetch(
                calls.fetch_wheel(wheel_name), cast(BinaryIO, landing.file), progress
            )
            await in_thread(landing.settle)
        return {"name": wheel_name, "path": str(landing.path), "size_bytes": size, "sha256_hex": sha256_hex}

    async def delete_wheel(self, wheel_name: str) -> WheelDeleted:
        """Delete a wheel from the registry. Workers that synchronise wheels remove it."""
        return await self._wire.call(calls.delete_wheel(wheel_name))

    # Shared helpers

    async def _follow(self, snapshot: RunSnapshot, waiting: Waiting) -> RunSnapshot:
        """Return the newest state that a watch reports, or `snapshot` if no stream can be opened.

        The gateway may refuse more watchers, or a proxy may block streams. After a first watch, the stream is tried
        only once per call: the next read of the run shows whether the gateway is reachable.
        """
        watching = self._watching(waiting.run_id, timeout_sec=waiting.listen_seconds(), final_errors=_NO_ROOM)
        if waiting.has_listened:
            watching.retry_seconds = 0.0
        try:
            async with aclosing(self._wire.events(watching)) as events:
                async for event in events:
                    snapshot = event["snapshot"]
                    waiting.ends_with(snapshot)
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
        except (httpx.TransportError, TimeoutError):
            pass
        waiting.listened()
        return snapshot

    def _watching(self, run_id: str, **asked: Any) -> Watching:
        return Watching(run_id=run_id, clocks=self._wire.clocks, retry_seconds=self._patience.seconds, **asked)
