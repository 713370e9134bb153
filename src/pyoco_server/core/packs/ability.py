"""Which packs workers can execute, and what is missing for those that none can (SAFE-3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyoco_server.core.packs.spec import PackSpec
from pyoco_server.core.worker_record import WorkerRecord

__all__ = ["ABLE", "Ability", "Offer", "Shortfall", "is_pack_worker", "offer_of", "shortfall"]


@dataclass(frozen=True, kw_only=True)
class Ability:
    """Whether one worker can execute one pack."""

    #: A sentence without its full stop, with what to do about it; shown to tenants. Empty: nothing is missing.
    missing: str = ""
    #: The options that inputs may require of it, such as the languages of ocr. None: any.
    provides: tuple[str, ...] | None = None

    def covers(self, needs: Iterable[str]) -> bool:
        return not self.missing and (self.provides is None or set(needs) <= set(self.provides))


ABLE = Ability()


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What the live workers together can do with one pack."""

    #: None: no worker reports it, or none takes priced runs; a worker that starts later may still execute the pack.
    is_executed: bool | None
    #: What is missing, without duplicates. Includes reports of single workers while others execute the pack.
    missing: tuple[str, ...] = ()
    #: The union of `Ability.provides`.
    provides: tuple[str, ...] | None = None


def is_pack_worker(record: WorkerRecord) -> bool:
    """Return whether the worker takes priced runs, or would if nothing were missing."""
    return bool(record.packs or record.packs_missing)


def ability_of(record: WorkerRecord, pack: str) -> Ability | None:
    """Return the worker's ability. None: it does not execute this pack, and gives no reason (PYOCO_PACKS may exclude
    it)."""
    if missing := (record.packs_missing or {}).get(pack):
        return Ability(missing=missing)
    if pack not in (record.packs or ()):
        return None
    provides = (record.packs_provide or {}).get(pack)
    return Ability(provides=None if provides is None else tuple(provides))


def offer_of(pack: str, living: Sequence[WorkerRecord]) -> Offer:
    """Return what the live workers can do with a pack. O(workers)."""
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
    """Why no worker can execute certain inputs."""

    text: str
    #: The member of the inputs that requires it; None: the pack itself cannot be executed.
    member: str | None = None


def shortfall(spec: PackSpec, inputs: Mapping[str, Any], living: Sequence[WorkerRecord]) -> Shortfall | None:
    """Return what prevents all workers from executing these inputs. None: nothing, or it is not known. O(workers)."""
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
    provided = offer.provides or ()
    lacking = [need for need in needs if need not in provided] or needs
    text = (
        f"{spec.name} cannot be executed with {', '.join(lacking)} now; workers have: {', '.join(provided) or 'none'}"
    )
    return Shortfall(text, spec.needs_member)
