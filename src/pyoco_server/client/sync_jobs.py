# Generated from aio_jobs.py: python tools/make_sync_client.py
"""Programs and their jobs, for programs without an event loop."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import BinaryIO, Unpack, cast

from pyoco_server.client import job_calls
from pyoco_server.client.files import Landing
from pyoco_server.client.io_sync import in_thread
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
from pyoco_server.client.sync_wire import Progress, Wire

__all__ = ["Jobs"]

_ARCHIVE = "output.zip"


class Jobs:
    """What a client can do with programs. A part of `PyocoHttpClient`, never on its own."""

    _wire: Wire

    def submit_job(
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
        form = in_thread(job_calls.job_form, exec_name, args, named_files(files), more)
        try:
            return self._wire.send_form(job_calls.submit_job(form, idempotency_key), form, progress)
        finally:
            form.close()

    def get_artifacts(self, run_id: str) -> list[Artifact]:
        """What a program has left behind: its archive and what it printed. Nothing while it runs."""
        return self._wire.call(job_calls.get_artifacts(run_id))

    def read_artifact(self, run_id: str, name: str) -> bytes:
        """One of its files, whole and compared: `stdout.txt`, `stderr.txt`, or `output.zip`."""
        data = io.BytesIO()
        self._wire.fetch(job_calls.fetch_artifact(run_id, name), data, None)
        return data.getvalue()

    def save_artifact(
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
            size, sha256_hex = self._wire.fetch(
                job_calls.fetch_artifact(run_id, name), cast(BinaryIO, landing.file), progress
            )
            in_thread(landing.settle)
        return {"name": name, "path": str(landing.path), "size_bytes": size, "sha256_hex": sha256_hex}

    def requeue_letter(self, letter_id: str) -> DlqMessageRequeued:
        """Submit the job of a dead letter again; asked for twice, it is the same new job."""
        return self._wire.call(job_calls.requeue_letter(letter_id))

    def exec_state(self, group: str | None = None) -> ExecState:
        """What waits, what runs, caps, doors, workers and replicas: of one group, or of all."""
        return self._wire.call(job_calls.exec_state(group))

    def exec_events(
        self,
        job_id: str | None = None,
        *,
        event: str | None = None,
        group: str | None = None,
        limit: int | None = None,
    ) -> ExecEvents:
        """What happened to jobs, the newest first."""
        return self._wire.call(
            job_calls.exec_events({"job_id": job_id, "event": event, "group": group, "limit": limit})
        )

    def get_client_cap(self, client_id: str, group: str | None = None) -> ExecClient:
        """How many jobs of a client may run at once, and how many do."""
        return self._wire.call(job_calls.get_client_cap(client_id, group))

    def set_client_cap(self, client_id: str, cap: int, group: str | None = None) -> ExecClient:
        """Say how many jobs of a client may run at once. The last word wins; what runs goes on."""
        return self._wire.call(job_calls.set_client_cap(client_id, cap, group))

    def get_acl(self, kind: str, of: str) -> ExecAcl:
        """Who may be a `client` or a `worker` of this id, and what it may do. For operators."""
        return self._wire.call(job_calls.get_acl(kind, of))

    def set_acl(self, kind: str, of: str, record: ExecAclWritten) -> ExecAcl:
        """Write the whole record. For operators."""
        return self._wire.call(job_calls.set_acl(kind, of, record))

    def delete_acl(self, kind: str, of: str) -> ExecAclDeleted:
        """Take the record away: with `EXEC_AUTH=api_key` nobody can be that client or worker then. For operators."""
        return self._wire.call(job_calls.delete_acl(kind, of))
