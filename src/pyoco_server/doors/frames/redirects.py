"""The other doors that a client or a worker may use (section 8.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyoco_server.core.frames.messages import NotLeader
from pyoco_server.ports.door_records.port import DoorRecords, DoorState

__all__ = ["RETRY_AFTER_MS", "Redirects"]

#: Delay before the next try when there is no other door.
RETRY_AFTER_MS = 1_000


class Redirects:
    """Addresses of the serving doors of the group: from their records, or from `--peers` while those cannot be read."""

    def __init__(
        self,
        records: DoorRecords,
        *,
        group: str,
        door_id: str,
        own: str,
        peers: Sequence[str],
        is_up: Callable[[], bool],
    ) -> None:
        self._records, self._group, self._door_id, self._own = records, group, door_id, own
        self._peers, self._is_up = [peer for peer in dict.fromkeys(peers) if peer != own], is_up
        self._turn = 0

    def others(self) -> list[str]:
        """Return the known serving doors besides this one. From memory."""
        known = self._records.all(self._group) if self._is_up() else []
        if not known:
            return list(self._peers)
        serving = (each for each in known if each.state is DoorState.SERVING and each.door_id != self._door_id)
        return [addr for addr in dict.fromkeys(each.addr for each in serving) if addr != self._own]

    def all(self) -> list[str]:
        """Return the doors for a HelloAck: this one first."""
        return [self._own, *self.others()]

    def not_leader(self, reason: DoorState) -> NotLeader:
        """Build a NotLeader that spreads peers over the other doors. Without other doors, they stay and try again."""
        others = self.others()
        self._turn += 1
        return NotLeader(
            reason=reason.value,
            leader=others[self._turn % len(others)] if others else None,
            doors=tuple(others),
            retry_after_ms=RETRY_AFTER_MS,
            group=self._group,
        )
