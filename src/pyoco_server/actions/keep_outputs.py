"""Store the large outputs of a run, before its terminal record is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from pyoco_server.core.run import Run
from pyoco_server.core.values.kept import Kept, PartFile, object_name
from pyoco_server.errors import NotStored, PyocoError, TooLarge, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend

__all__ = ["TenantUse", "keep_outputs"]

log = get_logger(__name__)

#: Storing the same bytes under the same name is safe to repeat. Longer than an election; the run ends meanwhile.
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_CHUNK_BYTES = 128 * 1024
#: For this long a tenant's use is taken as last counted, plus what this process has added.
_COUNT_SECONDS = 600.0
_TOO_LARGE, _NOT_THERE = 55, 56


class TenantUse:
    """How many bytes each tenant has in the store, counted now and then: a list of all objects takes long.

    What it cannot do: see what other workers have stored since. So a tenant may exceed its bound by what is stored
    within ten minutes.
    """

    def __init__(self) -> None:
        self._counted_at = -_COUNT_SECONDS
        self._bytes: dict[str, int] = {}

    async def of(self, backend: Backend, tenant_id: str) -> int:
        """Raises Unavailable."""
        if time.monotonic() - self._counted_at >= _COUNT_SECONDS:
            use: dict[str, int] = {}
            for each in await backend.outputs.all():
                use[each.tenant_id] = use.get(each.tenant_id, 0) + each.size_bytes
            self._bytes, self._counted_at = use, time.monotonic()
        return self._bytes.get(tenant_id, 0)

    def add(self, tenant_id: str, size_bytes: int) -> None:
        self._bytes[tenant_id] = self._bytes.get(tenant_id, 0) + size_bytes


async def keep_outputs(backend: Backend, run: Run, kept: Kept, use: TenantUse) -> Kept:
    """Store the parts of `kept`, and return what the record says about them.

    Costs nothing without parts, four round trips for each part of up to 8 MiB, more for larger ones. A crash leaves
    objects of an attempt that did not end its run; the keeper removes them. Never raises: a value that cannot be stored
    does not fail its run, and the record says why (RES-14).
    """
    if not kept.parts or kept.file is None:
        return kept
    size, tenant_id, bound = sum(kept.parts), run.tenant_id or "", backend.config.tenant_outputs_max_bytes
    try:
        if bound and tenant_id:
            used = await use.of(backend, tenant_id)
            if used + size > bound:
                name = "PYOCO_TENANT_OUTPUTS_MAX_BYTES"
                return _without_parts(kept, _TOO_LARGE, f"the tenant may keep {name}={bound} bytes, and has {used}")
        await _put_all(backend, run, kept, kept.file)
    except (PyocoError, OSError) as error:
        log.error("could not store the outputs of a run", run_id=run.run_id, size_bytes=size, error=error)
        return _without_parts(kept, _NOT_THERE, f"it could not be stored: {error}"[:1000])
    use.add(tenant_id, size)
    return replace(kept, parts=(), file=None)


async def _put_all(backend: Backend, run: Run, kept: Kept, file: PartFile) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    offset = 0
    for number, size in enumerate(kept.parts):
        name = object_name(run.run_id, run.attempt_id or "", number)
        while True:
            try:
                await backend.outputs.put(name, _chunks(file, offset, size), size, run.tenant_id or "")
                break
            except (NotStored, Unavailable) as error:
                if time.monotonic() > deadline:
                    raise
                log.info("retrying to store outputs", run_id=run.run_id, part=number, error=error)
            await asyncio.sleep(_PAUSE_SECONDS)
        offset += size


async def _chunks(file: PartFile, offset: int, size: int) -> AsyncIterator[bytes]:
    """Raises OSError, TooLarge if the file is shorter than announced."""
    end = offset + size
    while offset < end:
        data = await asyncio.to_thread(file.read, offset, min(_CHUNK_BYTES, end - offset))
        if not data:
            raise TooLarge("the file of outputs is shorter than announced")
        offset += len(data)
        yield data


def _without_parts(kept: Kept, number: int, detail: str) -> Kept:
    """Replace every entry that refers to a part by the reason why there is no such part."""

    def lost(entry: Any) -> Any:
        return {"error": number, "detail": detail} if "part" in entry else entry

    result = lost(kept.result) if kept.result is not None else None
    return Kept(result, {name: lost(entry) for name, entry in (kept.outputs or {}).items()})
