"""Find out who asks. The one place where that is decided."""

from __future__ import annotations

import re

from pyoco_server.core.api_key import is_open, key_id_of, verify
from pyoco_server.core.priced.run import Tenant, TenantStatus
from pyoco_server.core.run import Caller
from pyoco_server.errors import KeyMissing, KeyRefused
from pyoco_server.ports.backend import DoorBackend, GatewayBackend

__all__ = ["NOBODY", "authenticate", "authenticate_key", "authenticate_payer", "check_payer", "still_opens"]

#: Authentication is off and the caller has no valid key.
NOBODY = Caller()

#: What the ledger takes for a tenant id: it appears in object keys and in Redis' (contract 6.1). Shorter than a tag.
_PAYER = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


async def authenticate(backend: GatewayBackend, plain_key: str | None) -> Caller:
    """Who holds this key. Raises KeyMissing, KeyRefused (which of the ways it is wrong is not told), Unavailable.

    In mode `none` no key is needed and an invalid one is ignored, but a valid one counts (SAFE-5, FLOW-266). Raises
    only Unavailable then: a caller whose key cannot be checked is not treated as one without.

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
    """The same, whatever the settings of HTTP say: for a door that has a switch of its own."""
    return await _holder(backend, plain_key)


async def still_opens(backend: DoorBackend | GatewayBackend, key_id: str) -> bool:
    """Whether a key that has opened is neither revoked nor expired since. Raises Unavailable."""
    record = await backend.keys.find(key_id)
    return record is not None and is_open(record, backend.clock())


async def authenticate_payer(backend: GatewayBackend, plain_key: str | None) -> Caller:
    """The same where money is at stake: a key is needed whatever the settings say, and its tenant must be one that
    the ledger can have (PRICED-62, PRICED-170)."""
    caller = await _holder(backend, plain_key)
    if caller.tenant_id is None or _PAYER.fullmatch(caller.tenant_id) is None:
        raise KeyRefused
    return caller


def check_payer(tenant: Tenant | None) -> None:
    """Raises KeyRefused for a tenant that is not ACTIVE. One the ledger has never heard of is (PRICED-62)."""
    if tenant is not None and tenant.status is not TenantStatus.ACTIVE:
        raise KeyRefused


async def _holder(backend: DoorBackend | GatewayBackend, plain_key: str | None) -> Caller:
    if not plain_key:
        raise KeyMissing
    key_id = key_id_of(plain_key)
    record = await backend.keys.find(key_id) if key_id is not None else None
    # First the digest, then the question whether there is a record: an unknown key takes as long as a wrong one.
    if not verify(plain_key, record, backend.config.auth_pepper, backend.clock()) or record is None:
        raise KeyRefused
    return record.caller
