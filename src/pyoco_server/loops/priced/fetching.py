"""Fetch the files that a run's inputs name to the worker, before its pack starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.input_key import is_own_key
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import DependencyUnavailable, NoRoom, TooLarge
from pyoco_server.executors.packs.port import Faulted
from pyoco_server.logs import get_logger
from pyoco_server.loops.priced.staging import StagingTries
from pyoco_server.ports.inputs.scratch import Scratch
from pyoco_server.ports.priced import Priced

__all__ = ["Files", "Unfetched", "fetch_files"]

log = get_logger(__name__)

#: For all files of a run together. Not part of the timebox; heartbeats continue meanwhile.
_TRIES: Final = StagingTries(seconds=120.0, pauses=(1.0, 4.0, 15.0))


@dataclass(frozen=True)
class Files:
    """Where a worker stores the files of its runs, and how long it tries to fetch them."""

    scratch: Scratch
    tries: StagingTries = _TRIES


class Unfetched(Exception):
    """The pack cannot start."""

    def __init__(self, code: str, detail: str, *, is_outage: bool = False) -> None:
        super().__init__(code)
        #: The same type of failure as of the pack itself. Its owner can read it, so it names no key.
        self.fault = Faulted(f"{code}: {detail}", is_unavailable=is_outage)
        #: The store did not answer.
        self.is_outage = is_outage


async def fetch_files(
    priced: Priced, run: PricedRun, keys: Sequence[str], into: Path, tries: StagingTries = _TRIES
) -> Mapping[str, str]:
    """Fetch each file once, one after another, and return its local path by key. A file over the size limit is not read
    to its end.

    If the store does not answer, the fetch is retried within `tries`. The keys were checked when the run was submitted;
    they are checked again here, because a mistake there would let one tenant read another's files (PRICED-147). Raises
    Unfetched.
    """
    wanted = list(dict.fromkeys(keys))
    for number, key in enumerate(wanted, 1):
        if not is_own_key(key, run.tenant_id):
            log.error("a run names a file of another tenant", **facts.about(run))
            raise Unfetched("INPUT_REFUSED", f"file {number} of {len(wanted)} is not one of this tenant's")
    deadline = time.monotonic() + tries.seconds
    found: dict[str, str] = {}
    for number, key in enumerate(wanted, 1):
        place = into / str(number)
        which = f"file {number} of {len(wanted)}"
        await _fetch(priced, run, key, place, which, deadline, tries.pauses)
        found[key] = str(place)
    return found


async def _fetch(
    priced: Priced, run: PricedRun, key: str, place: Path, which: str, deadline: float, pauses: Sequence[float]
) -> None:
    bytes_max = priced.config.pack_input_max_bytes
    for pause in (0.0, *pauses):
        await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            break
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                head = await priced.inputs.fetch(key, place, bytes_max)
        except TooLarge:
            raise Unfetched("INPUT_TOO_LARGE", f"{which} has more than {bytes_max} bytes") from None
        except (DependencyUnavailable, NoRoom, TimeoutError) as error:
            log.warning("could not fetch a file of a run; trying again", **facts.about(run), cause=error)
        else:
            if head is None:
                raise Unfetched("INPUT_MISSING", f"{which} is not there: it was never uploaded, or has expired")
            return
    raise Unfetched("INPUT_UNAVAILABLE", f"{which} could not be read from its store", is_outage=True)
