"""Slots and caps in two JetStream KV buckets: `<group>.<client>.<n>` and `<group>.<client>`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from pyoco_server.core.programs.names import client_id_of, tenant_token_of
from pyoco_server.core.rounds import Rounds
from pyoco_server.errors import Corrupt
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.mirror import Follower, Mirror
from pyoco_server.ports.slots.port import Cap, Slot

__all__ = ["JetStreamSlots"]

log = get_logger(__name__)


#: Written since client ids are separate per tenant. Records of older versions have no scope.
_SCOPE = "tenant"


class _Value(msgspec.Struct):
    token: str
    run_id: str | None
    t: float
    holder: str
    scope: str = ""


class _CapValue(msgspec.Struct):
    cap: int
    updated_at: float
    source: str
    scope: str = ""
    #: The cap that an older version stored under this key: it applied to this client id in every tenant.
    before: int | None = None

    @property
    def of_every_tenant(self) -> int | None:
        return self.before if self.scope else self.cap


_encode = msgspec.json.Encoder().encode
_decode_slot = msgspec.json.Decoder(_Value).decode
_decode_cap = msgspec.json.Decoder(_CapValue).decode


def _key(slot: Slot) -> str:
    return f"{slot.group}.{slot.client}.{slot.number}"


def _bytes(slot: Slot) -> bytes:
    return _encode(_Value(slot.token, slot.run_id, slot.t, slot.holder, _SCOPE))


def _read_cap(data: bytes) -> _CapValue:
    try:
        return _decode_cap(data)
    except msgspec.DecodeError as error:
        raise Corrupt(f"not a cap: {error}") from error


def _cap(value: _CapValue) -> Cap:
    return Cap(value.cap, value.updated_at, value.source)


def _decode_stored_cap(entry: Entry | None) -> _CapValue | None:
    """Decode a stored cap. None: none is stored, or it is unreadable; the next `set_cap` overwrites it."""
    if entry is None or entry.value is None:
        return None
    try:
        return _read_cap(entry.value)
    except Corrupt:
        return None


class _Table(Follower):
    """Every slot that was ever taken, by client.

    Freed slots are remembered, too: to take one, a write must name the revision of its deletion marker.
    """

    def __init__(self, link: Link, bucket: Bucket) -> None:
        super().__init__(link, bucket)
        self._clients: dict[tuple[str, str], dict[int, Slot]] = {}
        #: Those written by a version without tenants.
        self._old: dict[tuple[str, str], dict[int, Slot]] = {}
        self._revisions: dict[str, int] = {}
        self.on_free: list[Callable[[str, str], None]] = []

    def _clear(self) -> None:
        self._clients.clear()
        self._old.clear()
        self._revisions.clear()

    def _apply(self, entry: Entry) -> None:
        if self._revisions.get(entry.key, 0) >= entry.revision:
            return
        group, client, number = _place(entry.key)
        if not group:
            return
        self._revisions[entry.key] = entry.revision
        value = _read(entry)
        _discard(self._old, (group, client), number)
        if value is not None:
            slot = Slot(group, client, number, value.token, value.run_id, value.t, value.holder, entry.revision)
            self._clients.setdefault((group, client), {})[number] = slot
            if not value.scope:
                self._old.setdefault((group, client), {})[number] = slot
            return
        _discard(self._clients, (group, client), number)
        # Also if we never saw that it was held: the watch delivers the newest state of a slot, not every state.
        for notify in self.on_free:
            notify(group, client)

    def free_revision(self, slot: Slot) -> int | None:
        """Return the revision that a write must name to take a free slot: that of its marker, or 0.

        None: the slot is not free.
        """
        if slot.number in self._clients.get((slot.group, slot.client), {}):
            return None
        return self._revisions.get(_key(slot), 0)

    def held(self, group: str, client: str) -> list[Slot]:
        held = self._clients.get((group, client))
        own = [held[number] for number in sorted(held)] if held else []
        return [*own, *self._of_every_tenant(group, client).values()]

    def count(self, group: str, client: str) -> int:
        return len(self._clients.get((group, client), ())) + len(self._of_every_tenant(group, client))

    def _of_every_tenant(self, group: str, client: str) -> Mapping[int, Slot]:
        """Return the slots that a version without tenants holds for this client id.

        Empty for a client without a tenant: those are the client's own slots.
        """
        if not self._old or tenant_token_of(client) is None:
            return {}
        return self._old.get((group, client_id_of(client)), {})

    def all_held(self, group: str) -> dict[str, list[Slot]]:
        return {
            client: [held[number] for number in sorted(held)]
            for (of, client), held in sorted(self._clients.items())
            if of == group
        }


def _place(key: str) -> tuple[str, str, int]:
    """Parse a key. An empty group: not a slot of ours."""
    group, _, rest = key.partition(".")
    client, _, number = rest.partition(".")
    return (group, client, int(number)) if number.isascii() and number.isdecimal() else ("", "", 0)


def _discard(table: dict[tuple[str, str], dict[int, Slot]], client: tuple[str, str], number: int) -> None:
    held = table.get(client)
    if held is not None:
        held.pop(number, None)
        if not held:
            del table[client]


def _read(entry: Entry) -> _Value | None:
    """Decode a slot. None: not held, or unreadable; taking an unreadable slot overwrites it."""
    if entry.value is None:
        return None
    try:
        return _decode_slot(entry.value)
    except msgspec.DecodeError:
        log.exception("unreadable slot record, slot counts as free", entry=entry.key)
        return None


class JetStreamSlots:
    def __init__(self, link: Link, slots_bucket: str, clients_bucket: str) -> None:
        self._bucket, self._caps_bucket = Bucket(link, slots_bucket), Bucket(link, clients_bucket)
        self._table = _Table(link, self._bucket)
        self._caps = Mirror(link, self._caps_bucket, _read_cap)

    async def start(self, on_free: Callable[[str, str], None] | None = None) -> None:
        if on_free is not None:
            self._table.on_free.append(on_free)
        await self._table.start()
        await self._caps.start()

    async def stop(self) -> None:
        await self._table.stop()
        await self._caps.stop()

    def held(self, group: str, client: str) -> list[Slot]:
        return self._table.held(group, client)

    def count(self, group: str, client: str) -> int:
        return self._table.count(group, client)

    def all_held(self, group: str) -> dict[str, list[Slot]]:
        return self._table.all_held(group)

    async def take(self, slot: Slot) -> Slot | None:
        if slot.revision:
            return await self._write(slot, slot.revision)
        revision = self._table.free_revision(slot)
        written = None if revision is None else await self._write(slot, revision)
        if written is None:
            entry = await self._bucket.get(_key(slot))  # memory lagged: the slot may be free after all
            if entry is not None:
                self._table.note(entry)
                if entry.value is None:
                    return await self._write(slot, entry.revision)
        return written

    async def _write(self, slot: Slot, revision: int) -> Slot | None:
        entry = await self._bucket.write(_key(slot), _bytes(slot), revision)
        if entry is None:
            return None
        self._table.note(entry)
        return replace(slot, revision=entry.revision)

    async def fill(self, slot: Slot, run_id: str, token: str, t: float) -> Slot | None:
        filled = replace(slot, token=token, run_id=run_id, t=t)
        return await self._write(filled, slot.revision)

    async def free(self, slot: Slot) -> bool:
        key = _key(slot)
        marker = await self._bucket.write(key, b"", slot.revision, {"KV-Operation": "DEL"})
        if marker is None:
            return False
        self._table.note(Entry(key, marker.revision, None))
        return True

    def cap(self, group: str, client: str) -> Cap | None:
        value = self._caps.get(f"{group}.{client}")
        if value is not None or tenant_token_of(client) is None:
            return None if value is None else _cap(value)
        old = self._caps.get(f"{group}.{client_id_of(client)}")
        if old is None or old.of_every_tenant is None:
            return None
        return Cap(old.of_every_tenant, old.updated_at, old.source)

    async def set_cap(self, group: str, client: str, cap: Cap) -> Cap:
        key = f"{group}.{client}"
        rounds = Rounds("the cap of a client")
        while True:
            rounds.begin()
            entry = await self._caps_bucket.get(key)
            if entry is not None:
                self._caps.note(entry)
            # Fifty connections of one client may say Hello concurrently: an equal cap needs no second write, and after
            # losing a race, a later cap takes precedence.
            if (stored_cap := _decode_stored_cap(entry)) is not None and (
                stored_cap.cap == cap.cap or (rounds.lost and stored_cap.updated_at > cap.updated_at)
            ):
                return _cap(stored_cap)
            before = None if stored_cap is None else stored_cap.of_every_tenant
            value = _encode(_CapValue(cap.cap, cap.updated_at, cap.source, _SCOPE, before))
            written = await self._caps_bucket.write(key, value, entry.revision if entry is not None else 0)
            if written is not None:
                self._caps.note(written)
                return cap

    def caps(self, group: str) -> dict[str, Cap]:
        found = ((key.partition("."), _cap(value)) for key, value in self._caps.items())
        return {client: cap for (of, _, client), cap in found if of == group}
