"""Authenticate a caller. The only place where that is decided."""

from __future__ import annotations

import re

from pyoco_server.core.api_key import is_open, key_id_of, verify
from pyoco_server.core.priced.run import Tenant, TenantStatus
from pyoco_server.core.run import Caller
from pyoco_server.errors import KeyMissing, KeyRefused
from pyoco_server.ports.backend import DoorBackend, GatewayBackend

__all__ = ["NOBODY", "authenticate", "authenticate_key", "authenticate_payer", "check_payer", "still_opens"]

#: The caller when authentication is off and no valid key was sent.
NOBODY = Caller()

#: Tenant ids that the ledger accepts: they are part of object keys and Redis keys (contract 6.1). Shorter than a tag.
_PAYER = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


async def authenticate(backend: GatewayBackend, plain_key: str | None) -> Caller:
    """Return the owner of this key.

    Raises KeyMissing, KeyRefused (without the reason why the key is wrong), Unavailable. In mode `none` no key is
    needed and an invalid one is ignored, but a valid one identifies the caller (SAFE-5, FLOW-266). Only Unavailable is
    raised in that mode: a caller whose key cannot be checked is not treated as a caller without a key.

    Costs a lookup in memory and one HMAC: microseconds.
    """
    if backend.config.http_auth_mode != "none":
        return await _holder(backend, plain_key)
    if not plain_key:
        return NOBODY
    try:
        return await _holder(backend, plain_key)
    except KeyRefused:
        return NOBODY


async def authenticate_key(backend: DoorBackend | GatewayBackend, plain_key: str | None) -> Caller:
    """Return the owner of this key, regardless of the HTTP settings: for a door that has its own setting."""
    return await _holder(backend, plain_key)


async def still_opens(backend: DoorBackend | GatewayBackend, key_id: str) -> bool:
    """Whether a key that was accepted earlier is still neither revoked nor expired. Raises Unavailable."""
    record = await backend.keys.find(key_id)
    return record is not None and is_open(record, backend.clock())


async def authenticate_payer(backend: GatewayBackend, plain_key: str | None) -> Caller:
    """Authenticate for priced runs: a key is required regardless of the settings, and its tenant id must be one that
    the ledger accepts (PRICED-62, PRICED-170)."""
    caller = await _holder(backend, plain_key)
    if caller.tenant_id is None or _PAYER.fullmatch(caller.tenant_id) is None:
        raise KeyRefused
    return caller


def check_payer(tenant: Tenant | None) -> None:
    """Raise KeyRefused for a tenant that is not ACTIVE. A tenant that is not in the ledger yet is ACTIVE
    (PRICED-62)."""
    if tenant is not None and tenant.status is not TenantStatus.ACTIVE:
        raise KeyRefused


async def _holder(backend: DoorBackend | GatewayBackend, plain_key: str | None) -> Caller:
    if not plain_key:
        raise KeyMissing
    key_id = key_id_of(plain_key)
    record = await backend.keys.find(key_id) if key_id is not None else None
    # Verify the digest first, and only then check whether a record exists: an unknown key takes as long as a wrong one.
    if not verify(plain_key, record, backend.config.auth_pepper, backend.clock()) or record is None:
        raise KeyRefused
    return record.caller
