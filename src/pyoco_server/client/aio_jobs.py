"""Programs and their jobs, for asyncio. The synchronous twin, `sync_jobs.py`, is made from this file."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import BinaryIO, Unpack, cast

from pyoco_server.client import job_calls
from pyoco_server.client.aio_wire import AsyncWire, Progress
from pyoco_server.client.files import Landing
from pyoco_server.client.io_async import in_thread
from pyoco_server.client.job_form import JobFiles, named_files
from pyoco_server.client.job_results import (
    Artifact,
    ArtifactSaved,
    DlqMessageRequeued,
    ExecAcl,
    ExecAclDeleted,
    ExecAclWritten,
    ExecClient,
    ExecEvents,
    ExecState,
    JobAccepted,
    JobAsked,
)

__all__ = ["AsyncJobs"]

_ARCHIVE = "output.zip"


class AsyncJobs:
    """What a client can do with programs. A part of `AsyncPyocoHttpClient`, never on its own."""

    _wire: AsyncWire

    async def submit_job(
        self,
        exec_name: str,
        args: Sequence[str] = (),
        files: JobFiles | None = None,
        *,
        idempotency_key: str | None = None,
        progress: Progress | None = None,
        **more: Unpack[JobAsked],
    ) -> JobAccepted:
        """Run a program that the workers know by name. When this returns its job is recorded and queued.

        `files` are bytes or paths by name, or paths alone; memory does not grow with them. The job has an id, made up
        unless given: however often it is sent, it counts once. `wait_run` waits for its end, `save_artifact` brings
        what it has left behind.

        Raises OSError for a file that cannot be read, SourceChanged for one that changes meanwhile, GridRefused for a
        name that no file of a job may have.
        """
        form = await in_thread(job_calls.job_form, exec_name, args, named_files(files), more)
        try:
            return await self._wire.send_form(job_calls.submit_job(form, idempotency_key), form, progress)
        finally:
            form.close()

    async def get_artifacts(self, run_id: str) -> list[Artifact]:
        """What a program has left behind: its archive and what it printed. Nothing while it runs."""
        return await self._wire.call(job_calls.get_artifacts(run_id))

    async def read_artifact(self, run_id: str, name: str) -> bytes:
        """One of its files, whole and compared: `stdout.txt`, `stderr.txt`, or `output.zip`."""
        data = io.BytesIO()
        await self._wire.fetch(job_calls.fetch_artifact(run_id, name), data, None)
        return data.getvalue()

    async def save_artifact(
        self,
        run_id: str,
        path: str | os.PathLike[str],
        name: str = _ARCHIVE,
        *,
        progress: Progress | None = None,
    ) -> ArtifactSaved:
        """The same into a file, or into a folder under its own name. It appears when it is whole and compared.

        An error of the gateway: 404 when there is no such file, 409 while the run is under way, 410 when it is no
        longer kept.
        """
        with Landing(path, name) as landing:
            size, sha256_hex = await self._wire.fetch(
                job_calls.fetch_artifact(run_id, name), cast(BinaryIO, landing.file), progress
            )
            await in_thread(landing.settle)
        return {"name": name, "path": str(landing.path), "size_bytes": size, "sha256_hex": sha256_hex}

    async def requeue_letter(self, letter_id: str) -> DlqMessageRequeued:
        """Submit the job of a dead letter again; asked for twice, it is the same new job."""
        return await self._wire.call(job_calls.requeue_letter(letter_id))

    async def exec_state(self, group: str | None = None) -> ExecState:
        """What waits, what runs, caps, doors, workers and replicas: of one group, or of all."""
        return await self._wire.call(job_calls.exec_state(group))

    async def exec_events(
        self,
        job_id: str | None = None,
        *,
        event: str | None = None,
        group: str | None = None,
        limit: int | None = None,
    ) -> ExecEvents:
        """What happened to jobs, the newest first."""
        return await self._wire.call(
            job_calls.exec_events({"job_id": job_id, "event": event, "group": group, "limit": limit})
        )

    async def get_client_cap(self, client_id: str, group: str | None = None) -> ExecClient:
        """How many jobs of a client may run at once, and how many do."""
        return await self._wire.call(job_calls.get_client_cap(client_id, group))

    async def set_client_cap(self, client_id: str, cap: int, group: str | None = None) -> ExecClient:
        """Say how many jobs of a client may run at once. The last word wins; what runs goes on."""
        return await self._wire.call(job_calls.set_client_cap(client_id, cap, group))

    async def get_acl(self, kind: str, of: str) -> ExecAcl:
        """Who may be a `client` or a `worker` of this id, and what it may do. For operators."""
        return await self._wire.call(job_calls.get_acl(kind, of))

    async def set_acl(self, kind: str, of: str, record: ExecAclWritten) -> ExecAcl:
        """Write the whole record. For operators."""
        return await self._wire.call(job_calls.set_acl(kind, of, record))

    async def delete_acl(self, kind: str, of: str) -> ExecAclDeleted:
        """Take the record away: with `EXEC_AUTH=api_key` nobody can be that client or worker then. For operators."""
        return await self._wire.call(job_calls.delete_acl(kind, of))
