"""An object store that only we use, shared by the adapters of inputs and of results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from pyoco_server.errors import Corrupt, DependencyUnavailable, ObjectNotFound
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.ensuring import ensure, keep_as_long
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import Resource
from pyoco_server.ports.objects.port import ObjectInfo, Objects

__all__ = ["OwnStore"]

log = get_logger(__name__)

_PING_SECONDS = 2.0


class _Info(msgspec.Struct):
    config: dict[str, Any]


@dataclass(frozen=True)
class OwnStore:
    """Finds, reads and reports errors for one kind of object.

    An unreadable object does not count as missing (PRICED-211).
    """

    link: Link
    objects: Objects
    bucket: str
    resources: Sequence[Resource]
    #: What the store contains, in the singular: for messages, which never name an object (PRICED-171).
    kind: str
    #: Turns errors of NATS into DependencyUnavailable. Takes a verb and its object.
    errors: Callable[[str], AbstractContextManager[None]]

    async def ensure(self) -> None:
        with self.errors(f"make the store of {self.kind}s"):
            await keep_as_long(self.link, self.resources)
            await ensure(self.link, self.resources)

    async def ping(self) -> None:
        with self.errors(f"reach the store of {self.kind}s"):
            await self.link.api(f"STREAM.INFO.OBJ_{self.bucket}", {}, _Info, seconds=_PING_SECONDS)

    async def info(self, key: str) -> ObjectInfo | None:
        """Return the description of an object. None: it does not exist. Raises DependencyUnavailable."""
        try:
            with self.errors(f"look for {self._one}"):
                return await self.objects.info(key)
        except ObjectNotFound:
            return None
        except Corrupt as error:
            raise self.damaged(error) from None

    async def read(self, info: ObjectInfo) -> AsyncGenerator[bytes, None]:
        """Yield the bytes.

        Only errors of the store are translated, not those of the consumer. Raises Corrupt, ObjectNotFound.
        """
        with self.errors(f"read {self._one}"):
            async with aclosing(self.objects.read(info)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def damaged(self, error: Corrupt) -> DependencyUnavailable:
        """Build an error with our own text: that of `error` names the object."""
        log.error(f"a stored {self.kind} is damaged", bucket=self.bucket, kind=type(error).__name__)
        return DependencyUnavailable(f"cannot read {self._one}: {type(error).__name__}")

    @property
    def _one(self) -> str:
        return f"an {self.kind}" if self.kind[0] in "aeiou" else f"a {self.kind}"
