"""The result of a pack, and the one document in which it is stored (contract 14.1, 14.2). Returns bytes; stores
nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from pyoco_server.core.priced.constants import ENVELOPE_MAX_BYTES, ENVELOPE_SCHEMA_VERSION
from pyoco_server.core.priced.money import usd_exact, usd_up
from pyoco_server.core.priced.result_key import artifact_key, is_artifact_name

__all__ = [
    "ENVELOPE_CONTENT_TYPE",
    "Artifact",
    "BadPackResult",
    "Cover",
    "DoesNotFit",
    "PackResult",
    "Sealed",
    "SealedObject",
    "seal",
    "seal_failed",
]

ENVELOPE_CONTENT_TYPE: Final = "application/json; charset=utf-8"
_MEMBER_CONTENT_TYPE: Final = "application/json"
_NAME_LENGTH_MAX: Final = 64
_STEM_LENGTH_MAX: Final = _NAME_LENGTH_MAX - len(".json")
#: The maximum of the database column.
_TOKENS_MAX: Final = 2**63 - 1

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
#: It becomes an HTTP header wherever the object is read.
_CONTENT_TYPE = re.compile(r"[!-~]+/[ -~]*[!-~]")
_CONTENT_TYPE_LENGTH_MAX: Final = 127


class BadPackResult(ValueError):
    """A pack returned something that cannot be stored: its run fails. The text contains the reason, and never the
    returned value."""


class DoesNotFit(BadPackResult):
    """The envelope is too large, even with everything moved out that can be (PRICED-132)."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file that a pack created."""

    #: `^[a-z0-9_.-]{1,64}$`, and unique within the result.
    name: str
    content_type: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class PackResult:
    """What a pack returns. It comes from third-party code, so nothing in it is trusted."""

    data: Mapping[str, Any]
    #: The cost, before the cap at the reservation.
    actual_cost_usd_micros: int
    artifacts: Sequence[Artifact] = ()
    discard_log: Sequence[Mapping[str, Any]] = ()
    blocked_log: Sequence[Mapping[str, Any]] = ()
    tokens_consumed: int = 0
    #: 0 to 1, for display; None: not estimated. It changes neither status nor charge (PRICED-128).
    reliability_score: float | None = None
    #: Facts about how the pack worked, beside its data: additional members of the envelope's `meta`.
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Cover:
    """The members of an envelope that do not depend on the result: facts of the run's row."""

    run_id: str
    pack_type: str
    trace_id: str | None
    profile_version: str
    #: The common prefix of all object keys of this run: see `result_prefix`.
    prefix: str
    #: ISO 8601 text.
    generated_at: str
    reserved_usd_micros: int
    #: The charge in the intent: already capped (PRICED-131).
    charge_usd_micros: int
    minimum_fee_usd_micros: int
    min_reliability_e4: int

    def __post_init__(self) -> None:
        assert 0 <= self.charge_usd_micros <= self.reserved_usd_micros


@dataclass(frozen=True, kw_only=True)
class SealedObject:
    """An artifact, ready to be stored under `key`, which ends in `artifacts/{name}`."""

    name: str
    key: str
    content_type: str
    data: bytes
    sha256: str

    def listed(self) -> dict[str, Any]:
        """Return its entry in the envelope, where it is listed under its name."""
        return {
            "key": self.key,
            "sha256": self.sha256,
            "bytes": len(self.data),
            "content_type": self.content_type,
        }


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """An envelope and its artifacts. Store `objects` first, so that an envelope never names a missing object."""

    envelope: bytes
    sha256: str
    objects: tuple[SealedObject, ...] = ()

    @property
    def manifest(self) -> tuple[dict[str, Any], ...]:
        """The artifacts for the row: what a reader needs to fetch each of them."""
        return tuple({"name": each.name, **each.listed()} for each in self.objects)


def seal(cover: Cover, result: PackResult) -> Sealed:
    """Build the envelope of a completed run, of at most `ENVELOPE_MAX_BYTES`.

    If it is too large, members of `data` are moved out into artifacts, the largest first. O(n log n) for n members,
    each encoded once. Raises BadPackResult, and DoesNotFit if the rest is still too large.
    """
    envelope = _Envelope(cover, result)
    for artifact in _listed(result.artifacts):
        envelope.add(_checked(artifact))
    envelope.shrink()
    return envelope.sealed()


def seal_failed(cover: Cover) -> Sealed:
    """Build the envelope of a run that failed on its worker: without data or artifacts (PRICED-133)."""
    return _sealed(_encode(_document(cover, "FAILED")))


def _sealed(envelope: bytes, objects: tuple[SealedObject, ...] = ()) -> Sealed:
    return Sealed(envelope=envelope, sha256=hashlib.sha256(envelope).hexdigest(), objects=objects)


def _document(cover: Cover, status: str) -> dict[str, Any]:
    return {
        "schema_version": ENVELOPE_SCHEMA_VERSION,
        "run_id": cover.run_id,
        "pack_type": cover.pack_type,
        "status": status,
        "generated_at": cover.generated_at,
        "cost": {
            "reserved_usd": usd_exact(cover.reserved_usd_micros),
            "used_usd": usd_up(cover.charge_usd_micros),
            "minimum_fee_usd": usd_up(cover.minimum_fee_usd_micros),
        },
        "data": {},
        "artifacts": {},
        "logs": {"discard_log": [], "blocked_log": []},
        "meta": {
            "trace_id": cover.trace_id,
            "profile_version": cover.profile_version,
            "reliability_met": None,
            "tokens_consumed": 0,
        },
    }


@dataclass
class _Members:
    """A JSON object whose members are already encoded, so that its size is known at any time at no cost."""

    written: dict[str, bytes] = field(default_factory=dict)
    _inside: int = 0

    def put(self, name: str, value: bytes) -> None:
        if name in self.written:
            self._inside += len(value) - len(self.written[name])
        else:
            self._inside += len(_encode(name)) + len(b":") + len(value)
        self.written[name] = value

    @property
    def size(self) -> int:
        return len(b"{}") + self._inside + max(0, len(self.written) - 1)

    def encode(self) -> bytes:
        return b"{" + b",".join(_encode(name) + b":" + value for name, value in self.written.items()) + b"}"


class _Envelope:
    """An envelope under construction."""

    def __init__(self, cover: Cover, result: PackResult) -> None:
        document = _document(cover, "COMPLETED")
        document["logs"] = {"discard_log": _listed(result.discard_log), "blocked_log": _listed(result.blocked_log)}
        document["meta"]["reliability_met"] = _met(result.reliability_score, cover.min_reliability_e4)
        document["meta"]["tokens_consumed"] = _tokens(result.tokens_consumed)
        document["meta"] = _checked_meta(result.meta) | document["meta"]  # the run's own facts override the pack's
        self._frame, self._data, self._artifacts = _Members(), _Members(), _Members()
        for name, value in document.items():
            self._frame.put(name, _encode(value))
        if not isinstance(result.data, Mapping) or not all(isinstance(name, str) for name in result.data):
            raise BadPackResult("the data of a pack is an object with names that are text")
        for name, value in result.data.items():
            self._data.put(name, _encode(value))
        self._prefix = cover.prefix
        self._objects: dict[str, SealedObject] = {}
        self._numbers: defaultdict[str, int] = defaultdict(int)

    @property
    def size(self) -> int:
        """The exact size of the complete envelope: the frame contains `{}` in place of data and artifacts."""
        return self._frame.size + self._data.size + self._artifacts.size - 2 * len(b"{}")

    def add(self, artifact: Artifact) -> None:
        if artifact.name in self._objects:
            raise BadPackResult("a pack made two artifacts of one name")
        self._put(self._object(artifact))

    def shrink(self) -> None:
        """Move the largest members out, one by one, until the envelope fits. Raises DoesNotFit."""
        sizes = {name: len(value) for name, value in self._data.written.items()}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            if self.size <= ENVELOPE_MAX_BYTES:
                return
            self._move_out(name)
        if self.size > ENVELOPE_MAX_BYTES:
            raise DoesNotFit(f"the envelope has {self.size} bytes, and may have {ENVELOPE_MAX_BYTES}")

    def _move_out(self, member: str) -> None:
        """Move a member out, unless that would save nothing: a short member may be no longer than its replacement."""
        name, value = self._free_name(member), self._data.written[member]
        moved = self._object(Artifact(name=name, content_type=_MEMBER_CONTENT_TYPE, data=value))
        reference = _encode({"$artifact": name})
        if len(value) > len(reference) + len(_encode({name: moved.listed()})):
            self._data.put(member, reference)
            self._put(moved)

    def _object(self, artifact: Artifact) -> SealedObject:
        return SealedObject(
            name=artifact.name,
            key=artifact_key(self._prefix, artifact.name),
            content_type=artifact.content_type,
            data=artifact.data,
            sha256=hashlib.sha256(artifact.data).hexdigest(),
        )

    def _put(self, added: SealedObject) -> None:
        self._objects[added.name] = added
        self._artifacts.put(added.name, _encode(added.listed()))

    def _free_name(self, member: str) -> str:
        """Return an unused artifact name: `Page Text` becomes `page_text.json`, and the next such member
        `page_text-2.json`."""
        stem = re.sub(r"[^a-z0-9_.-]", "_", member.lower()[:_STEM_LENGTH_MAX])
        while True:
            # Counted per stem: a thousand names in another script, all turned into underscores, must not take a million
            # tries.
            self._numbers[stem] += 1
            number = self._numbers[stem]
            end = ".json" if number == 1 else f"-{number}.json"
            name = stem[: _NAME_LENGTH_MAX - len(end)] + end
            if name not in self._objects:
                return name

    def sealed(self) -> Sealed:
        size = self.size
        self._frame.put("data", self._data.encode())
        self._frame.put("artifacts", self._artifacts.encode())
        envelope = self._frame.encode()
        assert len(envelope) == size <= ENVELOPE_MAX_BYTES
        return _sealed(envelope, tuple(self._objects.values()))


def _listed(items: Sequence[Any]) -> list[Any]:
    if not isinstance(items, list | tuple):
        raise BadPackResult("the logs and the artifacts of a pack are lists")
    return list(items)


def _checked(artifact: Any) -> Artifact:
    if not isinstance(artifact, Artifact):
        raise BadPackResult("an artifact has a name, a content type and bytes")
    if not isinstance(artifact.name, str) or not is_artifact_name(artifact.name):
        raise BadPackResult("the name of an artifact has 1 to 64 of: a-z 0-9 _ . -")
    if not isinstance(artifact.data, bytes):
        raise BadPackResult("the data of an artifact must be bytes")
    kind = artifact.content_type
    if not isinstance(kind, str) or len(kind) > _CONTENT_TYPE_LENGTH_MAX or not _CONTENT_TYPE.fullmatch(kind):
        raise BadPackResult("the content type of an artifact has a form such as text/markdown")
    return artifact


def _checked_meta(meta: object) -> dict[str, Any]:
    if not isinstance(meta, Mapping) or not all(isinstance(name, str) for name in meta):
        raise BadPackResult("the meta of a pack is an object with names that are text")
    return dict(meta)


def _tokens(count: object) -> int:
    if type(count) is not int or not 0 <= count <= _TOKENS_MAX:
        raise BadPackResult("tokens_consumed is a whole number, and not below zero")
    return count


def _met(score: object, min_reliability_e4: int) -> bool | None:
    if score is None:
        return None
    # NaN fails this check, too.
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        raise BadPackResult("a reliability score lies between 0 and 1")
    # Compared as decimals: 0.8 has to meet 0.8000, whatever its binary representation is.
    return Decimal(str(score)) >= Decimal(min_reliability_e4).scaleb(-4)


def _encode(value: Any) -> bytes:
    """Encode strict JSON: no NaN, no lone surrogates, no names that are not text. Raises BadPackResult."""
    try:
        written = _encoder.encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadPackResult("a pack's result holds what JSON cannot") from error
    # Checked after encoding, which rejects a value that contains itself. The encoder would turn 1 into "1", next to an
    # existing "1".
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if not all(isinstance(name, str) for name in item):
                raise BadPackResult("the members of a pack's data have names that are text")
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return written
