"""Credits: a worker asks the server for exactly as many jobs as it has room for, and never holds more.

A pull that is parked at the server cannot be called back, but it dies with its inbox. One lane gets all the room in
one parked pull. Several lanes share it: each is probed in turn with a pull that does not wait, and only when all
are empty is one place offered to each of them. So the same place is promised twice only while nothing happens; when
two lanes answer in that very moment, the job there is no room for goes back at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import nats.errors

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Delivery, Reply
from pyoco_server.ports.queue.puller import Lane, Puller

__all__ = ["JetStreamIntake"]

log = get_logger(__name__)

#: The shortest time a `take` waits: a question and its answer.
_TAKE_SECONDS_MIN = 0.05


class JetStreamIntake:
    def __init__(
        self,
        link: Link,
        stream: str,
        lanes: Sequence[Lane],
        on_delivery: Callable[[Delivery], None],
        make_lane: Callable[[str], Awaitable[Lane]],
    ) -> None:
        self._link, self._on_delivery, self._make_lane = link, on_delivery, make_lane
        self._pullers = [Puller(link, stream, lane, self._receive, self._kick) for lane in lanes]
        self._room = 0
        self._is_asking = False
        self._turn = 0
        self._taker: asyncio.Future[Delivery] | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._dirty = False
        self._returning: set[asyncio.Task[None]] = set()
        self.ack_wait_seconds = min(lane.ack_wait_seconds for lane in lanes)
        self.max_deliver = min((lane.max_deliver for lane in lanes if lane.max_deliver), default=0)

    @property
    def heard_at(self) -> float:
        return max(puller.heard_at for puller in self._pullers)

    async def want(self, count: int) -> None:
        self._room, self._is_asking = count, count > 0
        self._turn += 1  # FLOW-294: another tag is asked first each time
        self._kick()

    async def tick(self) -> None:
        for puller in self._pullers:
            if puller.is_refused:
                await self._bind(puller)
        self._kick()

    async def _bind(self, puller: Puller) -> None:
        """After a refusal the consumer may be gone: somebody deleted it. Make it again, as at the start."""
        try:
            await self._make_lane(puller.tag)
            puller.is_refused = False
        except Unavailable as error:
            log.warning("the queue refuses to be asked; trying again", tag=puller.tag, error=error)

    async def take(self, seconds: float) -> Delivery | None:
        """FLOW-365. When it returns, nothing is asked for any more, so that nothing is sent to one who has gone."""
        await self._link.until_up(max(seconds, self._link.patience.down_seconds))
        taker: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        deadline = time.monotonic() + max(seconds, _TAKE_SECONDS_MIN)
        self._taker = taker
        try:
            await self.want(1)
            while not taker.done() and (left := deadline - time.monotonic()) > 0:
                await asyncio.wait({taker}, timeout=min(left, 1.0))
                await self.tick()
            await self._leave()
            taken, taker = taker, asyncio.get_running_loop().create_future()
            return taken.result() if taken.done() else None
        finally:
            self._room, self._is_asking, self._taker = 0, False, None
            self._kick()
            if taker.done():  # cancelled with a job in hand
                self._give_back(taker.result())

    async def close(self) -> None:
        self._room = 0
        await self._leave()
        while self._returning:
            await asyncio.wait(set(self._returning))

    async def _leave(self) -> None:
        """Ask for nothing more, and wait for what is under way."""
        self._is_asking = False
        while self._pumping is not None and not self._pumping.done():
            await asyncio.wait({self._pumping})
        for puller in self._pullers:
            puller.leave()
        for puller in self._pullers:
            await puller.left()

    def _receive(self, delivery: Delivery) -> None:
        if self._room <= 0:
            # Two lanes answered in one moment, or the worker wants less by now: it is somebody else's.
            self._give_back(delivery)
            return
        self._room -= 1
        if self._taker is None:
            self._on_delivery(delivery)
        else:
            self._taker.set_result(delivery)

    def _give_back(self, delivery: Delivery) -> None:
        task = asyncio.create_task(delivery.answer(Reply.LATER))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    # What to ask for, decided in one task at a time.

    def _kick(self) -> None:
        """Something happened: look again at what to ask for."""
        self._dirty = True
        if self._pumping is None or self._pumping.done():
            self._pumping = asyncio.create_task(self._pump(), name="intake")

    async def _pump(self) -> None:
        while self._dirty:
            self._dirty = False
            for puller in self._pullers:
                if puller.is_deaf:
                    log.warning("the queue has gone silent; asking anew", tag=puller.tag)
                    puller.leave()
                elif puller.asked and (self._room <= 0 or not self._is_asking):
                    puller.leave()
            if self._room > 0 and self._is_asking and self._link.is_up:  # down: the tick after the reconnect asks
                try:
                    await (self._ask_only_lane() if len(self._pullers) == 1 else self._ask_lanes())
                except nats.errors.Error as error:
                    log.warning("the queue was not asked", error=error)

    async def _ask_only_lane(self) -> None:
        puller, room = self._pullers[0], self._room
        if puller.asked > room:  # the worker wants less than it did
            puller.leave()
        # Below half, so that a stream of short runs is asked for in bunches and not one by one.
        if puller.asked <= room // 2 and not puller.is_refused:
            await puller.park(room - puller.asked)

    async def _ask_lanes(self) -> None:
        if any(puller.is_probing for puller in self._pullers):
            return
        turn = self._turn % len(self._pullers)
        idle = [puller for puller in self._pullers[turn:] + self._pullers[:turn] if not puller.asked]
        idle = [puller for puller in idle if not puller.is_refused]
        for puller in idle:
            if not puller.is_empty:
                self._turn += 1
                await puller.probe(max(1, self._room - sum(other.asked for other in self._pullers)))
                return
        for puller in idle:
            await puller.park(1)
