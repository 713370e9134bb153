"""What workers can do with a pack, and what is missing where none can execute it (SAFE-3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyoco_server.core.packs.spec import PackSpec
from pyoco_server.core.worker_record import WorkerRecord

__all__ = ["ABLE", "Ability", "Offer", "Shortfall", "is_pack_worker", "offer_of", "shortfall"]


@dataclass(frozen=True, kw_only=True)
class Ability:
    """What one worker can do with one pack."""

    #: A sentence without its full stop, with what to do about it. Empty: nothing is missing. Tenants read it.
    missing: str = ""
    #: What inputs may need of it, such as the languages of ocr. None: whatever they ask for.
    provides: tuple[str, ...] | None = None

    def covers(self, needs: Iterable[str]) -> bool:
        return not self.missing and (self.provides is None or set(needs) <= set(self.provides))


ABLE = Ability()


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What the workers that are alive can do with one pack, together."""

    #: None: no worker tells, or none takes priced runs; then the pack may yet be executed by one that starts.
    is_executed: bool | None
    #: What is missing, each text once. Also told by single workers while others execute the pack.
    missing: tuple[str, ...] = ()
    #: See `Ability.provides`: all that some worker provides.
    provides: tuple[str, ...] | None = None


def is_pack_worker(record: WorkerRecord) -> bool:
    """Whether the worker takes priced runs, or would if nothing were missing."""
    return bool(record.packs or record.packs_missing)


def ability_of(record: WorkerRecord, pack: str) -> Ability | None:
    """None: the worker does not execute this pack, and does not say why (PYOCO_PACKS leaves it out, for example)."""
    if missing := (record.packs_missing or {}).get(pack):
        return Ability(missing=missing)
    if pack not in (record.packs or ()):
        return None
    provides = (record.packs_provide or {}).get(pack)
    return Ability(provides=None if provides is None else tuple(provides))


def offer_of(pack: str, living: Sequence[WorkerRecord]) -> Offer:
    """O(workers)"""
    takers = [record for record in living if is_pack_worker(record)]
    found = [ability for record in takers if (ability := ability_of(record, pack)) is not None]
    missing = tuple(dict.fromkeys(each.missing for each in found if each.missing))
    able = [each for each in found if not each.missing]
    if not takers or any(record.packs is None and record.kind is None for record in living):
        return Offer(is_executed=True if able else None, missing=missing)
    provides = None
    if able and all(each.provides is not None for each in able):
        provides = tuple(sorted({name for each in able for name in each.provides or ()}))
    return Offer(is_executed=bool(able), missing=missing, provides=provides)


@dataclass(frozen=True)
class Shortfall:
    """What keeps every worker from executing certain inputs."""

    text: str
    #: The member of the inputs that asks for it; None: the pack itself cannot be executed.
    member: str | None = None


def shortfall(spec: PackSpec, inputs: Mapping[str, Any], living: Sequence[WorkerRecord]) -> Shortfall | None:
    """None: nothing does, or it cannot be told. O(workers)"""
    offer = offer_of(spec.name, living)
    if offer.is_executed is None:
        return None
    if not offer.is_executed:
        why = "; ".join(offer.missing) or "no worker that is running has it"
        return Shortfall(f"{spec.name} cannot be executed now: {why}")
    needs = spec.needs(inputs)
    abilities = [ability_of(record, spec.name) for record in living]
    if any(ability is not None and ability.covers(needs) for ability in abilities):
        return None
    there = offer.provides or ()
    lacking = [need for need in needs if need not in there] or needs
    text = f"{spec.name} cannot be executed with {', '.join(lacking)} now; workers have: {', '.join(there) or 'none'}"
    return Shortfall(text, spec.needs_member)
