"""Wakeups over plain NATS, not stored: `pyoco.exechint.<group>.<hint>`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import nats.errors

from pyoco_server.errors import NotStored
from pyoco_server.ports.nats.client import Raw, Subscription
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.wakeups.port import Wakeup

__all__ = ["SUBJECTS", "NatsWakeups"]

SUBJECTS = "pyoco.exechint"
_WAKEUPS = {wakeup.value: wakeup for wakeup in Wakeup}


class _Listening:
    def __init__(self, link: Link, subscription: Subscription) -> None:
        self._link, self._subscription = link, subscription

    async def close(self) -> None:
        self._link.nc.forget(self._subscription)
        with contextlib.suppress(nats.errors.Error):  # the connection may be lost, and the subscription with it
            await self._subscription.unsubscribe()


class NatsWakeups:
    def __init__(self, link: Link) -> None:
        self._link = link

    async def tell(self, group: str, wakeup: Wakeup, word: str) -> None:
        if self._link.is_up:  # a wakeup delivered after a reconnect would be useless
            with contextlib.suppress(nats.errors.Error):
                await self._link.nc.send(f"{SUBJECTS}.{group}.{wakeup.value}", word.encode())

    async def listen(self, group: str, heard: Callable[[Wakeup, str], None], only: Wakeup | None = None) -> _Listening:
        wanted = "*" if only is None else only.value

        def listener(message: Raw) -> None:
            wakeup = _WAKEUPS.get(message.subject.rpartition(".")[2])
            if wakeup is not None:
                heard(wakeup, message.data.decode("utf-8", "replace"))

        try:
            return _Listening(self._link, await self._link.nc.listen(f"{SUBJECTS}.{group}.{wanted}", listener))
        except nats.errors.Error as error:
            raise NotStored("hints cannot be listened to") from error
