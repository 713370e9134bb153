"""API keys: their format, their stored records, and how a key is verified (section 14 of the contract)."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cached_property

from pyoco_server.core.run import Caller
from pyoco_server.errors import Corrupt

__all__ = [
    "LABEL_LENGTH_MAX",
    "KeyRecord",
    "encode_key",
    "encode_over",
    "is_open",
    "key_id_of",
    "label_problem",
    "make_key",
    "pepper_fingerprint",
    "read_expiry",
    "read_key",
    "verify",
]

LABEL_LENGTH_MAX = 200

_FORM = re.compile(r"pyoco_([0-9a-f]{16})_[A-Za-z0-9_-]{43,128}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class KeyRecord:
    """The stored form of a key: enough to verify it, nothing from which it could be recovered (FLOW-357)."""

    key_id: str
    tenant_id: str
    key_hash: str
    created_at: float
    revoked_at: float | None = None
    hash_alg: str = "hmac-sha256"
    #: A label for people: what the key is for.
    label: str | None = None
    #: From this time on the key is rejected.
    expires_at: float | None = None
    #: Accurate to about a minute: gateways write it at intervals.
    last_used_at: float | None = None

    @cached_property
    def caller(self) -> Caller:
        return Caller(tenant_id=self.tenant_id, api_key_id=self.key_id)


def make_key(
    tenant_id: str,
    pepper: str,
    now: float,
    hex_token: Callable[[int], str],
    url_token: Callable[[int], str],
    label: str | None = None,
    expires_at: float | None = None,
) -> tuple[str, KeyRecord]:
    """Create a new key: the plain text, to be shown once, and its record (FLOW-269). Randomness is passed in."""
    key_id = hex_token(8)
    plain = f"pyoco_{key_id}_{url_token(32)}"
    record = KeyRecord(
        key_id=key_id,
        tenant_id=tenant_id,
        key_hash=_digest(plain, pepper),
        created_at=now,
        label=label,
        expires_at=expires_at,
    )
    return plain, record


def label_problem(label: str) -> str | None:
    """Return why this is not a valid label, or None if it is."""
    if len(label) > LABEL_LENGTH_MAX:
        return f"a label has at most {LABEL_LENGTH_MAX} characters, this one has {len(label)}"
    if not label.isprintable():
        return "a label is one line of printable text"
    return None


_SPAN = re.compile(r"(\d{1,6})([mhd])", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_UNIX = re.compile(r"\d{9,12}(\.\d{1,9})?", re.ASCII)
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
#: The end of the year 9999: later times cannot be shown as dates.
_INSTANT_MAX = 253_402_300_799.0


def read_expiry(text: str, now: float) -> float:
    """Return the unix seconds of `30d`, `12h`, `90m`, a date (its start in UTC), or unix seconds.

    Raises ValueError for anything else, and for a time that is not in the future.
    """
    if span := _SPAN.fullmatch(text):
        moment = now + int(span[1]) * _SECONDS[span[2]]
    elif _DATE.fullmatch(text):
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    elif _UNIX.fullmatch(text):
        moment = float(text)
    else:
        raise ValueError("an expiry is a time from now such as 30d or 12h, a date such as 2027-01-31, or unix seconds")
    if not now < moment <= _INSTANT_MAX:
        raise ValueError("an expiry lies ahead, within the years that dates are written for")
    return moment


def pepper_fingerprint(pepper: str) -> str:
    """Return a value that shows whether two processes use the same pepper, and reveals nothing else about it
    (FIND-11)."""
    if not pepper:
        return "none"
    return hashlib.sha256(f"pyoco-pepper\n{pepper}".encode()).hexdigest()[:16]


def key_id_of(plain: str) -> str | None:
    """Return the id of the record to look up, or None if the text does not have the format of a key."""
    match = _FORM.fullmatch(plain)
    return match.group(1) if match else None


def verify(plain: str, record: KeyRecord | None, pepper: str, now: float) -> bool:
    """Return whether `plain` is valid for this record at this time.

    Takes as long for an unknown key as for a wrong one; about 2 microseconds (FLOW-270).
    """
    stored = record.key_hash if record is not None else "0" * 64
    matches = hmac.compare_digest(_digest(plain, pepper), stored)
    return matches and record is not None and is_open(record, now)


def is_open(record: KeyRecord, now: float) -> bool:
    """Return whether the key is valid at this time: neither revoked nor expired."""
    return record.revoked_at is None and (record.expires_at is None or now < record.expires_at)


def _digest(plain: str, pepper: str) -> str:
    return hmac.digest(pepper.encode(), plain.encode("utf-8", "replace"), "sha256").hex()


def encode_key(record: KeyRecord) -> bytes:
    return json.dumps(asdict(record), separators=(",", ":")).encode()


def encode_over(record: KeyRecord, stored: bytes) -> bytes:
    """Encode the record, and keep the members of the stored one that only a newer version knows."""
    return json.dumps(json.loads(stored) | asdict(record), separators=(",", ":")).encode()


_FIELDS = frozenset(item.name for item in fields(KeyRecord))


def read_key(data: bytes) -> KeyRecord:
    """Decode a key record. Unknown fields are ignored. Raises Corrupt if the bytes are not a valid record."""
    try:
        document = json.loads(data)
        record = KeyRecord(**{name: value for name, value in document.items() if name in _FIELDS})
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise Corrupt(f"not a key record: {error}") from error
    texts = (record.key_id, record.tenant_id, record.key_hash)
    # `verify` compares ASCII only, and a key without a tenant would be taken for a key that may access every tenant.
    if not all(isinstance(text, str) and text and text.isascii() for text in texts):
        raise Corrupt("not a key record: its id, tenant and hash must be ASCII text")
    if record.label is not None and not isinstance(record.label, str):
        raise Corrupt("not a key record: its label must be text")
    # Some of these times decide whether a key is valid, so a value that cannot be compared must not be accepted.
    if not _is_instant(record.created_at) or not all(
        moment is None or _is_instant(moment) for moment in (record.revoked_at, record.expires_at, record.last_used_at)
    ):
        raise Corrupt("not a key record: its times must be numbers")
    return record


def _is_instant(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
