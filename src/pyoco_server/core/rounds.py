"""A limit for every compare-and-set loop."""

from __future__ import annotations

from pyoco_server.errors import Unavailable

__all__ = ["ROUNDS_MAX", "Rounds"]

#: How often a compare-and-set may lose to another writer before it gives up. A round costs a read and a write. Among
#: concurrent writers, one succeeds in each round.
ROUNDS_MAX = 50


class Rounds:
    """Read, decide, write over exactly the revision that was read, and start over if another writer was faster.

    Call `begin` first in each pass of the loop:

        rounds = Rounds("run 17")
        while True:
            rounds.begin()
            found = await runs.find("17")
            written = await runs.replace(changed(found.run), found.revision)
            if isinstance(written, Stored):
                return written
    """

    __slots__ = ("_left", "_what", "lost")

    def __init__(self, what: str, most: int = ROUNDS_MAX) -> None:
        self._what, self._left = what, most
        #: Rounds lost so far.
        self.lost = -1

    def begin(self) -> None:
        """Raise Unavailable if every round was lost. Nothing was written in that case, because each write names its
        revision."""
        if not self._left:
            raise Unavailable(f"{self._what} changes too fast; try again")
        self._left -= 1
        self.lost += 1
