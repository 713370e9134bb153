"""Find out who asks. The one place where that is decided."""

from __future__ import annotations

from pyoco_server.core.api_key import key_id_of, verify
from pyoco_server.core.run import Caller
from pyoco_server.errors import KeyMissing, KeyRefused
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["NOBODY", "authenticate"]

#: Authentication is off: nobody is told apart.
NOBODY = Caller()


async def authenticate(backend: GatewayBackend, plain_key: str | None) -> Caller:
    """Who holds this key. Raises KeyMissing, KeyRefused (which of the ways it is wrong is not told), Unavailable.

    Costs a lookup in memory and one HMAC: microseconds.
    """
    if backend.config.http_auth_mode == "none":
        return NOBODY  # FLOW-266
    if not plain_key:
        raise KeyMissing
    key_id = key_id_of(plain_key)
    record = await backend.keys.find(key_id) if key_id is not None else None
    # First the digest, then the question whether there is a record: an unknown key takes as long as a wrong one.
    if not verify(plain_key, record, backend.config.auth_pepper, backend.clock()) or record is None:
        raise KeyRefused
    return record.caller
