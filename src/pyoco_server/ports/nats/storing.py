"""Store a message and know the outcome: the retry loop of every write to JetStream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from pyoco_server.errors import NoRoom, NotStored, Unavailable
from pyoco_server.ports.nats.link import Futile, Link, Rejected, StreamFull, gave_up

__all__ = ["RefusedStore", "store_once", "store_until_certain"]

_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.05, 1.0


class RefusedStore(Exception):
    """The server refused the message. With `is_ambiguous`, an earlier try without an answer may have been stored."""

    def __init__(self, error: Rejected, *, is_ambiguous: bool) -> None:
        super().__init__(str(error))
        self.code, self.is_ambiguous = error.code, is_ambiguous

    def failure(self, doing: str) -> Unavailable:
        """The error for callers to whom no refusal is an answer."""
        return (Unavailable if self.is_ambiguous else NotStored)(f"{doing}: {self}")


async def store_until_certain(
    link: Link, subject: str, payload: bytes, headers: Mapping[str, str] | None = None, *, stream: str, doing: str
) -> int:
    """Publish into `stream` and return the sequence. Repeats while the link's patience lasts: once NATS has refused for
    lack of room not at all, and while a full disk has stopped NATS from answering for `full_seconds`.

    The caller makes a repeat harmless, by a message id or by the revision it names. Raises RefusedStore; NotStored if
    nothing was stored for certain, Unavailable if that is unknown: one ambiguous try among many makes all ambiguous.
    Both are NoRoom, too, if that is the reason.
    """
    begun_at = time.monotonic()
    is_ambiguous, pause = False, _PAUSE_SECONDS
    while True:
        try:
            return await link.store(subject, payload, headers, stream=stream)
        except Rejected as error:
            raise RefusedStore(error, is_ambiguous=is_ambiguous) from error
        except Unavailable as error:
            is_ambiguous = is_ambiguous or not isinstance(error, NotStored)
            patience = link.patience
            seconds = patience.full_seconds if isinstance(error, NoRoom) else patience.unanswered_seconds
            if isinstance(error, Futile | StreamFull) or time.monotonic() > begun_at + seconds:
                raise gave_up(doing, error, ambiguous=is_ambiguous) from error
        await asyncio.sleep(pause)
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)


async def store_once(link: Link, subject: str, payload: bytes, message_id: str, *, stream: str, where: str) -> None:
    """Store a message that the stream ignores if it has one with this id (FLOW-77), so that it can be repeated.

    `where` is for error messages. Raises NotStored, or Unavailable if it is unknown whether it was stored.
    """
    headers = {"Nats-Msg-Id": message_id}
    try:
        await store_until_certain(link, subject, payload, headers, stream=stream, doing=f"cannot reach {where}")
    except RefusedStore as error:
        raise error.failure(f"{where} refuses {subject}") from error
