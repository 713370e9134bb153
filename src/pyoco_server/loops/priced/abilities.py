"""Which packs a worker can execute now, and what it lacks for the others (SAFE-3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from pyoco_server.core.packs.ability import ABLE, Ability
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop

__all__ = ["Abilities", "Probe"]

log = get_logger(__name__)

#: Checks what this machine can execute of these packs. The result may also name problems with other packs; requested
#: packs that it does not name lack nothing. Blocks.
Probe = Callable[[Collection[str]], Mapping[str, Ability]]

#: Time between checks; the second one while something is missing.
_CHECK_SECONDS: Final = 30.0
_MISSING_SECONDS: Final = 5.0
#: A check that hangs is abandoned.
_TURN_SECONDS_MAX: Final = 60.0


class Abilities(Loop):
    """Checks periodically, and immediately after a run that failed because something was missing.

    It cannot detect a loss before the next check. A run that is started meanwhile fails and is refunded.
    """

    def __init__(self, packs: Iterable[str], probe: Probe) -> None:
        super().__init__(every_seconds=_CHECK_SECONDS, turn_seconds_max=_TURN_SECONDS_MAX)
        self._packs, self._probe = frozenset(packs), probe
        self._found: Mapping[str, Ability] = {}
        #: Set after the first check, whatever its result.
        self.checked = asyncio.Event()
        #: Called when something has changed.
        self.when_changed: Callable[[], None] = lambda: None

    @property
    def packs(self) -> frozenset[str]:
        """The packs that can be executed."""
        return frozenset(name for name in self._packs if not self._of(name).missing)

    @property
    def missing(self) -> Mapping[str, str]:
        """What is missing for the other packs, by pack."""
        return {name: each.missing for name, each in sorted(self._found.items()) if each.missing}

    @property
    def provides(self) -> Mapping[str, tuple[str, ...]]:
        return {name: provided for name in sorted(self.packs) if (provided := self._of(name).provides) is not None}

    def covers(self, pack: str, needs: Collection[str]) -> bool:
        return pack in self._packs and self._of(pack).covers(needs)

    def _of(self, pack: str) -> Ability:
        return self._found.get(pack, ABLE)

    async def turn(self) -> None:
        before = self._found
        try:
            self._found = await asyncio.to_thread(self._probe, self._packs)
        finally:
            self.checked.set()
        self._every_seconds = _MISSING_SECONDS if self.missing else _CHECK_SECONDS
        if self._found != before:
            self._log_changes(before)
            self.when_changed()

    def _log_changes(self, before: Mapping[str, Ability]) -> None:
        for name in sorted(self._found.keys() | before.keys()):
            now, then = self._of(name).missing, before.get(name, ABLE).missing
            if now and now != then:
                log.error("pack cannot be executed on this worker", pack=name, missing=now)
            elif now != then:
                log.info("pack can be executed again", pack=name)
