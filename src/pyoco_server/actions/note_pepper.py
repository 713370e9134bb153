"""Store a fingerprint of the pepper that API keys are checked with, so that no key is made with another one
(FIND-11)."""

from __future__ import annotations

from pyoco_server.core.api_key import pepper_fingerprint
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["note_pepper"]

log = get_logger(__name__)


async def note_pepper(backend: GatewayBackend) -> None:
    """Check the pepper when a gateway starts. One round trip.

    The first gateway with authentication on stores the fingerprint of its pepper; a later one with another pepper logs
    a warning, because it refuses every key made before. A crash leaves nothing or the fingerprint. Raises Unavailable.
    """
    if backend.config.http_auth_mode == "none":
        return
    own = pepper_fingerprint(backend.config.auth_pepper)
    stored = await backend.keys.keep_pepper(own)
    if stored != own:
        log.warning(
            "PYOCO_AUTH_PEPPER is not the pepper that API keys were made with; this gateway refuses those keys",
            pepper_fingerprint=own,
            stored_fingerprint=stored,
        )
