# Generated from aio_outputs.py: python tools/make_sync_client.py
"""Results and outputs of runs, for programs without an event loop."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, cast

from pyoco_server.client import calls
from pyoco_server.client.files import Landing
from pyoco_server.client.io_sync import in_thread
from pyoco_server.client.run_results import OutputSaved
from pyoco_server.client.sync_wire import Progress, Wire

__all__ = ["Outputs"]


class Outputs:
    """What runs and their tasks have returned: operations of `PyocoHttpClient`. Not used on its own."""

    _wire: Wire

    def read_run_result(self, run_id: str) -> bytes:
        """Return the result of a run as it is stored, after checking its sha256: JSON, unless it is bytes itself.

        The gateway answers 404 for an unknown run, 409 if it has no result, and 410 if the result is no longer kept.
        """
        data = io.BytesIO()
        self._wire.fetch(calls.fetch_run_result(run_id), data, None)
        return data.getvalue()

    def read_task_output(self, run_id: str, task: str) -> bytes:
        """Return the output of a task, like `read_run_result`."""
        data = io.BytesIO()
        self._wire.fetch(calls.fetch_task_output(run_id, task), data, None)
        return data.getvalue()

    def save_run_result(
        self, run_id: str, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> OutputSaved:
        """Save the result of a run to a file, or to a folder under the id of the run.

        The file appears only when it is complete and its sha256 has been checked.
        """
        with Landing(path, run_id) as landing:
            file = cast(BinaryIO, landing.file)
            size, sha256_hex = self._wire.fetch(calls.fetch_run_result(run_id), file, progress)
            in_thread(landing.settle)
        return {"path": str(landing.path), "bytes": size, "sha256": sha256_hex}
