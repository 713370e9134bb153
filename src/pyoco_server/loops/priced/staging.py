"""Store a result where it cannot be reached before its run is committed (PRICED-126)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.envelope import ENVELOPE_CONTENT_TYPE, Sealed
from pyoco_server.core.priced.result_key import envelope_key, result_prefix
from pyoco_server.core.priced.run import PricedRun, ResultPointer
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.results.port import ExistsDifferent

__all__ = ["NotStaged", "StagingTries", "prefix_of", "stage", "stage_once"]

log = get_logger(__name__)


@dataclass(frozen=True)
class StagingTries:
    """How often an upload is tried, and for how long (PRICED-115)."""

    seconds: float = 30.0
    #: Before the second try, before the third, and so on.
    pauses: Sequence[float] = (1.0, 4.0)


@dataclass(frozen=True)
class NotStaged:
    """The result could not be stored. Objects stored before the failure stay: they cannot be reached, and expire."""

    why: str
    #: The store did not answer.
    is_outage: bool = False


def prefix_of(run: PricedRun) -> str:
    return result_prefix(run.tenant_id, run.created_at, run.run_id)


async def stage(priced: Priced, run: PricedRun, sealed: Sealed, tries: StagingTries) -> ResultPointer | NotStaged:
    """Store the artifacts, then the envelope. A retry continues where the previous try failed.

    Each object is written once, so that a repeat after an unknown outcome is harmless.
    """
    key = envelope_key(prefix_of(run))
    waiting = [(each.key, each.data, each.content_type, each.sha256) for each in sealed.objects]
    waiting.append((key, sealed.envelope, ENVELOPE_CONTENT_TYPE, sealed.sha256))
    deadline = time.monotonic() + tries.seconds
    share = tries.seconds / (len(tries.pauses) + 1)
    for pause in (0.0, *tries.pauses):
        await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        seconds = min(share, deadline - time.monotonic())
        if seconds <= 0:
            break
        try:
            async with asyncio.timeout(seconds):
                while waiting:
                    stored = await priced.results.put(*waiting[0], {"run_id": run.run_id})
                    if isinstance(stored, ExistsDifferent):
                        log.error("other bytes are stored where a result belongs", **facts.about(run))
                        return NotStaged("other bytes lie where the result belongs")
                    waiting.pop(0)
        except (DependencyUnavailable, TimeoutError) as error:
            log.warning("could not store a result; trying again", **facts.about(run), cause=error)
        else:
            return ResultPointer(
                bucket=priced.results.bucket,
                key=key,
                sha256=sealed.sha256,
                size_bytes=len(sealed.envelope),
                artifacts=sealed.manifest,
            )
    return NotStaged("the result could not be stored", is_outage=True)


async def stage_once(priced: Priced, run: PricedRun, sealed: Sealed, seconds: float) -> None:
    """Try once, for an envelope to which no row points (PRICED-133)."""
    await stage(priced, run, sealed, StagingTries(seconds, ()))
