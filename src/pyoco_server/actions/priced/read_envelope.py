"""Read what a run left, for its owner."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.actions.priced.owned import Owned, find_owned, stored_envelope
from pyoco_server.ports.priced import Priced

__all__ = ["EnvelopeReading", "read_envelope"]


@dataclass(frozen=True)
class EnvelopeReading:
    owned: Owned
    #: As it is stored, to the byte. None: the run is not COMPLETED, and nothing of it was ever published.
    data: bytes | None


async def read_envelope(priced: Priced, run_id: str, tenant_id: str) -> EnvelopeReading:
    """The row by id and owner, then the envelope it names: two round trips, and at most `ENVELOPE_MAX_BYTES` in memory.

    Raises RunNotFound and RunExpired as `read_run` does; DependencyUnavailable, also when the stored bytes are gone
    or are not those whose hash the row has.
    """
    owned = await find_owned(priced, run_id, tenant_id)
    result = owned.result
    return EnvelopeReading(owned, None if result is None else await stored_envelope(priced, owned.run, result))
