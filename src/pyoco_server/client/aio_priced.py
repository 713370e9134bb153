"""Priced runs and budgets, for asyncio. The synchronous twin, `sync_priced.py`, is made from this file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Unpack, cast

from pyoco_server.client import priced_calls
from pyoco_server.client.aio_wire import AsyncWire, Progress
from pyoco_server.client.faults import PackProblem
from pyoco_server.client.files import Landing, folder_for
from pyoco_server.client.io_async import in_thread, sleep
from pyoco_server.client.pack_input import Uploadable, compared, named_as
from pyoco_server.client.pack_result import Signed, files_of, signed_in
from pyoco_server.client.pack_waiting import INTERVAL_SECONDS, PackWaiting
from pyoco_server.client.priced_results import (
    Budget,
    BudgetJournal,
    BudgetList,
    BudgetSpend,
    PackEnvelope,
    PackFile,
    PackInput,
    PackOffer,
    PackReceipt,
    PackRun,
    PricedReady,
)
from pyoco_server.client.results import Health
from pyoco_server.client.retry import Patience
from pyoco_server.client.run_results import StartTime

__all__ = ["AsyncPricedRuns"]

#: Longer than a timebox, and longer than it takes to detect a lost worker.
_WAIT_SECONDS = 180.0
#: When signed URLs are requested again: they are valid for ten minutes, which must also cover the download.
_ADDRESS_SECONDS = 300.0


class AsyncPricedRuns:
    """The priced-run and budget operations of `AsyncPyocoHttpClient`. Not used on its own.

    An error response under `/v1` raises `PackProblem`: an `httpx.HTTPStatusError` with `reason_code`, `trace_id` and,
    for an invalid submission, `errors`.
    """

    _wire: AsyncWire
    _patience: Patience

    async def submit_pack(  # noqa: PLR0913  (the fields of a submission)
        self,
        pack_type: str,
        inputs: Mapping[str, Any],
        max_cost_usd: str | int | Decimal,
        *,
        timebox_sec: int | None = None,
        min_reliability_score: float | None = None,
        inline: bool = False,
        artifacts: Mapping[str, bool] | None = None,
        idempotency_key: str | None = None,
        trace_id: str | None = None,
        **start: Unpack[StartTime],
    ) -> PackReceipt:
        """Run a pack that costs at most `max_cost_usd`. This amount is reserved when the call returns.

        The amount is a string with four decimals (`"0.2500"`), an int or a `Decimal`; a float raises TypeError. Every
        attempt of one call sends the same idempotency key, generated unless given, so the run is accepted and paid for
        once. The receipt and a `PackProblem` both contain the key. With `delay` or `not_before` the run starts later;
        the amount is reserved at once.
        """
        submission = priced_calls.pack_submission(
            pack_type,
            inputs,
            {
                "max_cost_usd": priced_calls.usd_text(max_cost_usd),
                "timebox_sec": timebox_sec,
                "min_reliability_score": min_reliability_score,
            },
            options={"inline": 1 if inline else None},
            artifacts=artifacts,
            meta={"trace_id": trace_id},
            start=start,
        )
        return await self._wire.call(priced_calls.submit_pack(submission, idempotency_key))

    async def list_packs(self) -> list[PackOffer]:
        """Return the packs on offer, and what workers lack for those that none can execute."""
        return (await self._wire.call(priced_calls.list_packs()))["items"]

    async def get_pack_run(self, run_id: str) -> PackRun:
        """Return the current state and cost of a priced run, and signed URLs of its result, valid for ten minutes."""
        return await self._wire.call(priced_calls.get_pack_run(run_id))

    async def wait_pack_run(
        self,
        run_id: str,
        timeout_sec: float | None = None,
        *,
        interval_sec: float = INTERVAL_SECONDS,
        progress: Callable[[PackRun], object] | None = None,
    ) -> PackRun:
        """Wait until the run is COMPLETED or FAILED and return it. Raises TimeoutError after `timeout_sec`, 180 s
        unless given.

        The run is polled at the interval that the service recommends; when waiting for n runs concurrently, pass
        `interval_sec=n`. Answers 429 and 503 do not end the wait before its timeout. `progress` is called with every
        state that is read.
        """
        seconds = _WAIT_SECONDS if timeout_sec is None else timeout_sec
        waiting = PackWaiting(run_id=run_id, clocks=self._wire.clocks, seconds=seconds, interval_seconds=interval_sec)
        reading = priced_calls.get_pack_run(run_id)
        try:
            while True:
                patience, ends_at = waiting.patience(self._patience), waiting.look_ends_at
                try:
                    run = await self._wire.call(reading, patience=patience, ends_at=ends_at)
                except PackProblem as error:
                    pause = waiting.pause_after(error)
                else:
                    if progress is not None:
                        progress(run)
                    if waiting.ends_with(run):
                        return run
                    pause = waiting.pause()
                await sleep(pause)
        except TimeoutError as error:
            raise TimeoutError(waiting.timeout_message(str(error))) from error.__cause__

    async def get_envelope(self, run_id: str) -> PackEnvelope:
        """Return the result of a completed run through the gateway, which checks its sha256 wherever it is stored.

        Raises PackProblem: 422 for a run that is not COMPLETED, 410 for one past its retention.
        """
        return await self._wire.call(priced_calls.get_envelope(run_id))

    async def read_pack_result(self, run: PackRun, artifact: str | None = None) -> bytes:
        """Return the stored result of a completed run, or one of its artifacts, after checking the sha256.

        The API key is sent only to this gateway, even if the result is stored elsewhere. Raises ValueError for a run
        without a result. A signed URL is valid for ten minutes: read the run again when it has expired.
        """
        return await self._wire.read_signed(signed_in(run, artifact))

    async def save_result(
        self,
        run_id: str,
        directory: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> list[PackFile]:
        """Save the result of a completed run as `pack_envelope.json` and its artifacts under their names in a folder.

        The folder is created if it does not exist. Each file appears only when it is complete and its sha256 has been
        checked. The API key is sent only to this gateway, even if the files are stored elsewhere. Raises ValueError for
        a run without a result, and FileExistsError for an existing file unless `overwrite`; both before any download.
        `progress` is called with the bytes of the current file so far and its total, or None if that is not known.
        """
        steady = self._wire.clocks.steady
        run, read_at = await self.get_pack_run(run_id), steady()
        files = files_of(run)
        folder = await in_thread(folder_for, directory, files, overwrite=overwrite)
        saved: list[PackFile] = []
        for name, artifact in files.items():
            if steady() - read_at > _ADDRESS_SECONDS:
                run, read_at = await self.get_pack_run(run_id), steady()
            saved.append(await self._save(signed_in(run, artifact), folder, name, progress))
        return saved

    async def upload_input(
        self,
        data: Uploadable,
        content_type: str | None = None,
        *,
        name: str | None = None,
        progress: Progress | None = None,
    ) -> PackInput:
        """Upload an input file for packs. Put the `image` of the answer into the `images` of a submission.

        `data` is bytes, a path or an open file. It is streamed, and the sha256 in the response is compared with what
        was sent. Type and `name` are taken from a path unless given. Uploading the same bytes again yields the same
        file while more than half of its lifetime is left, so the upload is retried like other calls. `progress` is
        called with the bytes sent so far and the total, or None if the total is not known.
        """
        file_name, file_type = named_as(data, name, content_type)
        sent = await self._wire.send_file(priced_calls.upload_input(file_name, file_type), data, progress)
        return compared(*sent)

    # Budgets

    async def list_budgets(self, after: str | None = None, limit: int | None = None) -> BudgetList:
        """Return one page of all tenants' budgets by id; with an API key, only the budget of its tenant.

        For the next page pass its `next_after` as `after`.
        """
        return await self._wire.call(priced_calls.list_budgets({"after": after, "limit": limit}))

    async def get_budget(self, tenant_id: str) -> Budget:
        """Return the available, reserved, charged and credited amounts of a tenant."""
        return await self._wire.call(priced_calls.get_budget(tenant_id))

    async def get_budget_journal(
        self, tenant_id: str, before: int | None = None, limit: int | None = None
    ) -> BudgetJournal:
        """Return one page of a tenant's journal, newest first. For older lines pass its `next_before` as `before`."""
        return await self._wire.call(priced_calls.get_budget_journal(tenant_id, {"before": before, "limit": limit}))

    async def get_budget_spend(
        self, tenant_id: str, seconds: int | None = None, step: int | None = None
    ) -> BudgetSpend:
        """Return a tenant's charges in the last `seconds` (default: 30 days), in steps of `step` seconds (a day)."""
        return await self._wire.call(priced_calls.get_budget_spend(tenant_id, {"seconds": seconds, "step": step}))

    async def healthz(self) -> Health:
        """Check that the gateway is alive, without any of its dependencies. Never retried."""
        return await self._wire.call(priced_calls.healthz())

    async def readyz(self) -> PricedReady:
        """Check that priced runs are accepted. Never retried; the gateway answers 503 if they are not."""
        return await self._wire.call(priced_calls.readyz())

    # Shared helpers

    async def _save(self, signed: Signed, folder: Path, name: str, progress: Progress | None) -> PackFile:
        with Landing(folder, name) as landing:
            size = await self._wire.fetch_signed(signed, cast(BinaryIO, landing.file), progress)
            await in_thread(landing.settle)
        return {"name": name, "path": str(landing.path), "bytes": size, "sha256": signed.sha256}
