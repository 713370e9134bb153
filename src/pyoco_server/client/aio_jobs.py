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
    """The program operations of `AsyncPyocoHttpClient`. Not used on its own."""

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
        """Run a program that the workers know by name. Its job is recorded and queued when this returns.

        `files` maps names to bytes or paths, or is a list of paths; files are streamed, so memory does not grow with
        their size. The job id is generated unless given, and the job is accepted once even if it is sent several times.
        Use `wait_run` to wait until it has ended and `save_artifact` to fetch its files.

        Raises OSError for a file that cannot be read, SourceChanged for one that changes during the upload, and
        GridRefused for an invalid file name.
        """
        form = await in_thread(job_calls.job_form, exec_name, args, named_files(files), more)
        try:
            return await self._wire.send_form(job_calls.submit_job(form, idempotency_key), form, progress)
        finally:
            form.close()

    async def get_artifacts(self, run_id: str) -> list[Artifact]:
        """List the artifacts of a job: its archive and its output. Empty while the program runs."""
        return await self._wire.call(job_calls.get_artifacts(run_id))

    async def read_artifact(self, run_id: str, name: str) -> bytes:
        """Return an artifact after checking its sha256: `stdout.txt`, `stderr.txt` or `output.zip`."""
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
        """Save an artifact to a file, or to a folder under its own name.

        The file appears only when it is complete and its sha256 has been checked. The gateway answers 404 if there is
        no such artifact, 409 while the run is under way, and 410 if the artifact is no longer kept.
        """
        with Landing(path, name) as landing:
            size, sha256_hex = await self._wire.fetch(
                job_calls.fetch_artifact(run_id, name), cast(BinaryIO, landing.file), progress
            )
            await in_thread(landing.settle)
        return {"name": name, "path": str(landing.path), "size_bytes": size, "sha256_hex": sha256_hex}

    async def requeue_letter(self, letter_id: str) -> DlqMessageRequeued:
        """Submit the job of a dead letter again. Idempotent: a second call returns the same new job."""
        return await self._wire.call(job_calls.requeue_letter(letter_id))

    async def exec_state(self, group: str | None = None) -> ExecState:
        """Return queues, running jobs, caps, doors, workers and replicas of one group or of all groups."""
        return await self._wire.call(job_calls.exec_state(group))

    async def exec_events(
        self,
        job_id: str | None = None,
        *,
        event: str | None = None,
        group: str | None = None,
        limit: int | None = None,
    ) -> ExecEvents:
        """Return the events of jobs, newest first."""
        return await self._wire.call(
            job_calls.exec_events({"job_id": job_id, "event": event, "group": group, "limit": limit})
        )

    async def get_client_cap(self, client_id: str, group: str | None = None) -> ExecClient:
        """Return the cap of a client (how many of its jobs may run concurrently) and how many are running."""
        return await self._wire.call(job_calls.get_client_cap(client_id, group))

    async def set_client_cap(self, client_id: str, cap: int, group: str | None = None) -> ExecClient:
        """Set how many jobs of a client may run concurrently. The last write wins; running jobs are not affected."""
        return await self._wire.call(job_calls.set_client_cap(client_id, cap, group))

    async def get_acl(self, kind: str, of: str) -> ExecAcl:
        """Return the ACL record of a `client` or `worker`: which API keys may use its id, and what it may do.

        For operators.
        """
        return await self._wire.call(job_calls.get_acl(kind, of))

    async def set_acl(self, kind: str, of: str, record: ExecAclWritten) -> ExecAcl:
        """Replace the ACL record. For operators."""
        return await self._wire.call(job_calls.set_acl(kind, of, record))

    async def delete_acl(self, kind: str, of: str) -> ExecAclDeleted:
        """Delete the ACL record. With `EXEC_AUTH=api_key` the id cannot be used after that. For operators."""
        return await self._wire.call(job_calls.delete_acl(kind, of))
