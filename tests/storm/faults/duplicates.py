"""Deliveries that come twice: copies of jobs, of those that wait and of those that were done long ago.

A queue promises "at least once"; this makes it so. A copy is the message as it stands in its stream, headers and all,
but for the id by which the server would know it again. What was done and acked is no longer in a work queue, so what
passes by during a strike is kept, and sent again at its end and in later ones: then only the run's record can decide.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections import deque
from dataclasses import dataclass, field

import msgspec

from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link, Patience, Rejected, open_link
from storm.port import Site, Struck

__all__ = ["QUEUES", "Copy", "Duplicates", "read_standing", "send_copies"]

#: The streams of flows, programs and packs, and their subjects.
QUEUES = {"PYOCO_WORK": "pyoco.work.>", "PYOCO_EXEC": "pyoco.exec.>", "DPP_RUNS": "dpp.runs"}
_KEPT_MAX = 2000
_SENT_MAX = 40
_NO_MESSAGE_FOUND = 10037
#: What would make the server drop the copy, or refuse it.
_LEFT_OUT = ("nats-msg-id", "nats-expected-")


@dataclass(frozen=True)
class Copy:
    stream: str
    subject: str
    body: bytes
    headers: dict[str, str]


class _Stored(msgspec.Struct):
    subject: str
    seq: int
    data: str = ""
    hdrs: str = ""


class _Found(msgspec.Struct):
    message: _Stored


def _copy(stream: str, message: Raw) -> Copy:
    left = {name: value for name, value in message.headers.items() if not name.lower().startswith(_LEFT_OUT)}
    return Copy(stream, message.subject, message.data, left)


async def read_standing(link: Link, stream: str, count: int) -> list[Copy]:
    """The oldest jobs that are in the queue now, waiting or delivered. One round trip for each."""
    found: list[Copy] = []
    after = 0
    while len(found) < count:
        request = {"seq": after + 1, "next_by_subj": QUEUES[stream]}
        try:
            message = (await link.api(f"STREAM.MSG.GET.{stream}", request, _Found)).message
        except Rejected as error:
            if error.code == _NO_MESSAGE_FOUND:
                return found
            raise
        raw = Raw(message.subject, "", base64.b64decode(message.data), base64.b64decode(message.hdrs))
        found.append(_copy(stream, raw))
        after = message.seq
    return found


async def send_copies(link: Link, copies: list[Copy]) -> int:
    """How many were taken. A stream refuses one at times, as that of programs does while the first is there (GRID-8),
    or does not answer, as in any storm."""

    async def send(copy: Copy) -> bool:
        try:
            await link.store(copy.subject, copy.body, copy.headers)
        except (Rejected, Unavailable):
            return False
        return True

    return sum(await asyncio.gather(*(send(copy) for copy in copies)))


@dataclass
class Duplicates:
    """At the strike a copy of what is in the queues, and of some that passed by in earlier strikes; at its end, of what
    passed by during this one. Who gets a copy has to see what it is."""

    name: str = "duplicates"
    lasts: tuple[float, float] = (1.0, 6.0)
    kept: deque[Copy] = field(default_factory=lambda: deque(maxlen=_KEPT_MAX))
    #: Until healed.
    _links: list[tuple[Struck, Link, random.Random]] = field(default_factory=list)

    def can_strike(self, site: Site) -> bool:
        return bool(site.nats_url)

    async def strike(self, site: Site, dice: random.Random) -> Struck:
        count, own = dice.randint(1, _SENT_MAX), random.Random(dice.random())  # two throws, whatever there is to copy
        try:
            link = await open_link(site.nats_url, "duplicates", Patience(down_seconds=2.0, answer_seconds=2.0))
        except Unavailable:
            return Struck(self.name, "queues", "NATS is away")
        new = [copy for stream in QUEUES for copy in await self._standing(link, stream, count)]
        old = own.sample(self.kept, min(count, len(self.kept)))
        for stream, subject in QUEUES.items():
            await link.nc.listen(subject, self._hear(stream))
        taken = await send_copies(link, new), await send_copies(link, old)
        struck = Struck(self.name, "queues", f"{taken[0]} of {len(new)} that wait, {taken[1]} of {len(old)} old ones")
        self._links.append((struck, link, own))
        return struck

    @staticmethod
    async def _standing(link: Link, stream: str, count: int) -> list[Copy]:
        try:
            return await read_standing(link, stream, count)
        except (Rejected, Unavailable):
            return []  # there is no such queue here, or it cannot be reached

    def _hear(self, stream: str) -> _Ear:
        return _Ear(stream, self.kept)

    async def heal(self, site: Site, struck: Struck) -> None:
        """A copy cannot be called back; there are no more of them."""
        for item in [each for each in self._links if each[0] == struck]:
            self._links.remove(item)
            _, link, dice = item
            await send_copies(link, dice.sample(self.kept, min(_SENT_MAX, len(self.kept))))
            await link.close()


@dataclass(frozen=True)
class _Ear:
    """Keeps what passes by, the copies themselves among it."""

    stream: str
    kept: deque[Copy]

    def __call__(self, message: Raw) -> None:
        if not message.reply.startswith("$JS.ACK."):  # that is a delivery, and not a job that is put
            self.kept.append(_copy(self.stream, message))
