"""Passes a file from a group to a client (GRID-146)."""

from __future__ import annotations

import asyncio
from uuid import UUID

from pyoco_server.client.frames.faults import OutputDamaged
from pyoco_server.client.frames.fetch import Fetch
from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import BinaryPart, ObjectGet
from pyoco_server.frames.wire import Wire, WireClosed, fresh

__all__ = ["Passage"]


class Passage(Fetch):
    """Passes parts to the client as they arrive, and keeps none.

    If the group's door is lost, the rest is requested from the next one. The client checks the sha256 of the complete
    file.
    """

    def __init__(self, ask: ObjectGet, wire: Wire, corr_id: UUID) -> None:
        super().__init__(ask.job_id, ask.name, 0, "")
        self._ask, self._wire, self._corr_id = ask, wire, corr_id
        self._passed = 0
        #: Raises the error of the group, if it refused.
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ask(self) -> ObjectGet:
        return ObjectGet(job_id=self._ask.job_id, name=self._ask.name, offset=self._ask.offset + self._passed)

    async def put(self, part: BinaryPart) -> None:
        """Send a part. Waits while the client is slow. A part out of sequence fails the transfer."""
        if self.is_over:
            return
        if part.offset != self._ask.offset + self._passed:
            self.fail(OutputDamaged("a part is not the next one of the file"))
            return
        try:
            await self._wire.send(fresh(Type.OBJECT_CHUNK, part.to_payload(), corr_id=self._corr_id))
        except WireClosed as closed:  # the client's wire; that of the group is unaffected
            self.fail(closed)
            return
        self._passed += len(part.data)
        if part.last:
            self.forget()

    def fail(self, error: Exception) -> None:
        self.is_over = True
        if not self.done.done():
            self.done.set_exception(error)

    def forget(self) -> None:
        """End without an error: the file is complete, or no longer wanted."""
        self.is_over = True
        if not self.done.done():
            self.done.set_result(None)
