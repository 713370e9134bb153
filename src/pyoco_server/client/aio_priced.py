"""Priced runs and budgets, for asyncio. The synchronous twin, `sync_priced.py`, is made from this file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, cast

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

__all__ = ["AsyncPricedRuns"]

#: Longer than a timebox, and than it takes until somebody notices that a worker is gone.
_WAIT_SECONDS = 180.0
#: After which new addresses are asked for. They are good for ten minutes, and a file takes its time, too.
_ADDRESS_SECONDS = 300.0


class AsyncPricedRuns:
    """What a client can do with priced runs and budgets. A part of `AsyncPyocoHttpClient`, never on its own.

    Under `/v1` a gateway's error is a `PackProblem`: an `httpx.HTTPStatusError` with `reason_code`, `trace_id` and,
    for a submission that is not valid, `errors`.
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
    ) -> PackReceipt:
        """Run a pack, and pay no more than `max_cost_usd` for it: so much is reserved when this returns.

        The amount is a text with four decimals, `"0.2500"`, or a `Decimal`; a float raises TypeError. Every try of one
        call carries the same idempotency key, made up unless given, so it is accepted and paid for once; the receipt
        and a `PackProblem` tell the key.
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
        )
        return await self._wire.call(priced_calls.submit_pack(submission, idempotency_key))

    async def list_packs(self) -> list[PackOffer]:
        """The packs that are offered, and what is missing where no worker can execute one."""
        return (await self._wire.call(priced_calls.list_packs()))["items"]

    async def get_pack_run(self, run_id: str) -> PackRun:
        """A priced run as it is now: its state, its cost, and where its result can be read for the next ten minutes."""
        return await self._wire.call(priced_calls.get_pack_run(run_id))

    async def wait_pack_run(
        self,
        run_id: str,
        timeout_sec: float | None = None,
        *,
        interval_sec: float = INTERVAL_SECONDS,
        progress: Callable[[PackRun], object] | None = None,
    ) -> PackRun:
        """The run once it is COMPLETED or FAILED. Raises TimeoutError when it is not after `timeout_sec` (180 s unless
        given).

        It is looked at as often as the service recommends; who waits for n runs at once better gives `interval_sec=n`.
        Being told to come later, or that the service is away, only ends the wait with its time. `progress` is called
        with each look.
        """
        seconds = _WAIT_SECONDS if timeout_sec is None else timeout_sec
        waiting = PackWaiting(run_id=run_id, clocks=self._wire.clocks, seconds=seconds, interval_seconds=interval_sec)
        look = priced_calls.get_pack_run(run_id)
        try:
            while True:
                patience, ends_at = waiting.patience(self._patience), waiting.look_ends_at
                try:
                    run = await self._wire.call(look, patience=patience, ends_at=ends_at)
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
            raise TimeoutError(waiting.told(str(error))) from error.__cause__

    async def get_envelope(self, run_id: str) -> PackEnvelope:
        """The result of a completed run, read through the gateway wherever it lies; the gateway compares its sha256.
        Raises PackProblem: 422 for a run that is not COMPLETED, 410 for one past its retention.
        """
        return await self._wire.call(priced_calls.get_envelope(run_id))

    async def read_pack_result(self, run: PackRun, artifact: str | None = None) -> bytes:
        """The result of a completed run as it is stored, or one of its artifacts; the sha256 is compared.

        The API key goes to this gateway alone, also when the result lies elsewhere. Raises ValueError for a run
        without a result. An address is good for ten minutes: get the run once more when it has expired.
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
        """All that a completed run has made, into a folder: the result as `pack_envelope.json`, and every artifact
        under its own name. The folder is made unless it is there.

        Each file appears when it is whole and its sha256 was compared. The API key goes to this gateway alone, also
        when the files lie elsewhere. Raises ValueError for a run without a result, and FileExistsError for a file that
        is there, unless `overwrite`; both before anything is fetched. `progress` is called with the bytes of the
        current file so far and with all it has, or None.
        """
        steady = self._wire.clocks.steady
        run, looked_at = await self.get_pack_run(run_id), steady()
        files = files_of(run)
        folder = await in_thread(folder_for, directory, files, overwrite=overwrite)
        saved: list[PackFile] = []
        for name, artifact in files.items():
            if steady() - looked_at > _ADDRESS_SECONDS:
                run, looked_at = await self.get_pack_run(run_id), steady()
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
        """Bring a file that packs read. The `image` of the answer goes into the `images` of a submission.

        `data` is bytes, a path or an open file; it is sent as it is read, and the answer's sha256 is compared with what
        was sent. Type and `name` are a path's own unless given. The same bytes again are the same file, while more than
        half of its time is left: so it is tried again, as other calls are. `progress` is called with the bytes sent so
        far and with all there are, or None.
        """
        told_name, told_type = named_as(data, name, content_type)
        sent = await self._wire.send_file(priced_calls.upload_input(told_name, told_type), data, progress)
        return compared(*sent)

    # Budgets

    async def list_budgets(self, after: str | None = None, limit: int | None = None) -> BudgetList:
        """The budgets of all tenants, by id; with a key, the one it belongs to. `next_after`, given as `after`, brings
        the next ones."""
        return await self._wire.call(priced_calls.list_budgets({"after": after, "limit": limit}))

    async def get_budget(self, tenant_id: str) -> Budget:
        """What a tenant has left, has set aside, was charged and was given."""
        return await self._wire.call(priced_calls.get_budget(tenant_id))

    async def get_budget_journal(
        self, tenant_id: str, before: int | None = None, limit: int | None = None
    ) -> BudgetJournal:
        """Every money fact of a tenant, the newest first. `next_before`, given as `before`, brings older ones."""
        return await self._wire.call(priced_calls.get_budget_journal(tenant_id, {"before": before, "limit": limit}))

    async def get_budget_spend(
        self, tenant_id: str, seconds: int | None = None, step: int | None = None
    ) -> BudgetSpend:
        """What a tenant was charged in the last `seconds` (30 days), in steps of `step` seconds (a day)."""
        return await self._wire.call(priced_calls.get_budget_spend(tenant_id, {"seconds": seconds, "step": step}))

    async def healthz(self) -> Health:
        """Is the gateway alive? It asks nobody else for this. Asked once."""
        return await self._wire.call(priced_calls.healthz())

    async def readyz(self) -> PricedReady:
        """Are priced runs accepted? Asked once; 503 when they are not."""
        return await self._wire.call(priced_calls.readyz())

    # What they share

    async def _save(self, signed: Signed, folder: Path, name: str, progress: Progress | None) -> PackFile:
        with Landing(folder, name) as landing:
            size = await self._wire.fetch_signed(signed, cast(BinaryIO, landing.file), progress)
            await in_thread(landing.settle)
        return {"name": name, "path": str(landing.path), "bytes": size, "sha256": signed.sha256}
