"""Read a run for its owner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.owned import find_envelope, find_owned
from pyoco_server.core.priced.constants import INLINE_MAX_BYTES, PRESIGNED_URL_TTL_SECONDS_DEFAULT
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.run import PricedRun, ResultPointer
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.priced import Priced

__all__ = ["InlineResult", "PricedRunReading", "SignedArtifact", "SignedResult", "read_run"]

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class SignedArtifact:
    name: str
    url: str
    sha256: str
    size_bytes: int
    content_type: str


@dataclass(frozen=True)
class InlineResult:
    """The inline result that `options.inline` requested (PRICED-76): the envelope's data, or why it is left out."""

    data: Any = None
    #: TOO_LARGE or UNAVAILABLE; None: `data` is set.
    omitted: str | None = None


@dataclass(frozen=True, kw_only=True)
class SignedResult:
    """Where the result can be fetched. The URLs may be paths on this server."""

    url: str
    sha256: str
    #: Unix seconds; the same for all URLs.
    expires_at: int
    artifacts: tuple[SignedArtifact, ...]
    #: None: not requested.
    inline: InlineResult | None


@dataclass(frozen=True)
class PricedRunReading:
    run: PricedRun
    #: By the ledger's clock, when the row was read.
    now_us: int
    #: The tenant's available money, read after the row: a charge that is visible in the row is deducted here.
    balance_usd_micros: int
    #: For COMPLETED runs only (PRICED-12).
    result: SignedResult | None


async def read_run(priced: Priced, run_id: str, tenant_id: str) -> PricedRunReading:
    """Return the row as `find_owned` does; for a COMPLETED run with newly signed URLs, which are stored nowhere.

    Raises RunNotFound, RunExpired, DependencyUnavailable.
    """
    owned = await find_owned(priced, run_id, tenant_id)
    row, result = owned.run, owned.result
    signed = None if result is None else await _signed(priced, row, result, owned.now_us)
    return PricedRunReading(row, owned.now_us, owned.balance_usd_micros, signed)


async def _signed(priced: Priced, run: PricedRun, result: ResultPointer, now_us: int) -> SignedResult:
    """PRICED-77: the URLs are valid for ten minutes, and never beyond the retention."""
    expires_at = min(now_us + PRESIGNED_URL_TTL_SECONDS_DEFAULT * SECOND_US, run.retention_until) // SECOND_US
    url, artifacts, inline = await asyncio.gather(
        priced.results.signed_url(result.key, expires_at),
        asyncio.gather(*(_artifact(priced, item, expires_at) for item in result.artifacts)),
        _inline(priced, run, result),
    )
    return SignedResult(url=url, sha256=result.sha256, expires_at=expires_at, artifacts=tuple(artifacts), inline=inline)


async def _artifact(priced: Priced, item: Mapping[str, Any], expires_at: int) -> SignedArtifact:
    return SignedArtifact(
        name=item["name"],
        url=await priced.results.signed_url(item["key"], expires_at),
        sha256=item["sha256"],
        size_bytes=item["bytes"],
        content_type=item["content_type"],
    )


async def _inline(priced: Priced, run: PricedRun, result: ResultPointer) -> InlineResult | None:
    if not run.inline:
        return None
    if result.size_bytes > INLINE_MAX_BYTES:
        return InlineResult(omitted="TOO_LARGE")
    try:
        data = await find_envelope(priced, run, result)
    except DependencyUnavailable as error:
        log.warning("could not read a result to show it inline", **facts.about(run), cause=error)
        return InlineResult(omitted="UNAVAILABLE")
    if data is None:
        log.warning("result is missing; not shown inline", **facts.about(run))
        return InlineResult(omitted="UNAVAILABLE")
    return InlineResult(data=json.loads(data)["data"])
