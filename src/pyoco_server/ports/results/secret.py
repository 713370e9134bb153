"""The secret that signs the URLs of results: the same for every gateway and after every restart."""

from __future__ import annotations

import hmac
import secrets

from pyoco_server.config import NatsBackendConfig, PricedConfig
from pyoco_server.errors import Corrupt
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.dependency import dependency_errors
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import SECRETS_BUCKET, secrets_resources

__all__ = ["signing_secret"]

_SECRET_BYTES = 32


async def signing_secret(link: Link, config: NatsBackendConfig, priced: PricedConfig) -> bytes:
    """Return the secret from the settings. Without one, return a random secret, which is created once and stored in
    NATS under the name of the results' bucket, mixed with the pepper of the API keys: with a pepper, a copy of the
    store is not enough to sign.

    Raises DependencyUnavailable, and Corrupt if the stored value is not a secret.
    """
    if priced.results_secret:
        return priced.results_secret.encode()
    with dependency_errors("read the secret of results"):
        await ensure(link, secrets_resources(config.jetstream_replicas))
        kept = await _kept(Bucket(link, SECRETS_BUCKET), priced.results_bucket)
    if len(kept) != _SECRET_BYTES:
        raise Corrupt(f"the secret of results in {SECRETS_BUCKET} has {len(kept)} bytes")
    return hmac.digest(config.auth_pepper.encode(), kept, "sha256")


async def _kept(bucket: Bucket, key: str) -> bytes:
    """Return the stored secret, or create it.

    If several processes create one concurrently, one wins, and the others use its secret.
    """
    while True:
        entry = await bucket.get(key)
        if entry is not None and entry.value is not None:
            return entry.value
        drawn = secrets.token_bytes(_SECRET_BYTES)
        if await bucket.write(key, drawn, entry.revision if entry else 0) is not None:
            return drawn
