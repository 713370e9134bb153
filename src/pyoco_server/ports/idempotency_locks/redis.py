"""Hints in Redis (split mode): keys of the contract's section 8.1, each with its own expiry."""

from __future__ import annotations

from pyoco_server.core.priced.constants import (
    IDEM_LOCK_TTL_SECONDS,
    IDEMPOTENCY_MAPPING_TTL_SECONDS,
    LEASE_TTL_SECONDS,
)
from pyoco_server.ports.idempotency_locks.port import Mapped
from pyoco_server.ports.ledger.port import Rate
from pyoco_server.ports.redis.link import RedisLink, Script

__all__ = ["RedisIdempotencyLocks"]

#: After this long without use a bucket is full again.
_BUCKET_TTL_SECONDS = 120
#: Parts per token. A bucket of n tokens per minute gains n parts per millisecond, so no fraction is ever dropped.
_PARTS = 60_000

_UNLOCK = Script("""#!lua
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return {}
""")

_EXTEND = Script("""#!lua
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return {}
""")

#: Writes all fields and the expiry in one script, so a mapping never stays for ever.
_REMEMBER = Script("""#!lua
redis.call('HSET', KEYS[1], 'run_id', ARGV[1], 'payload_hash', ARGV[2], 'created_at_ms', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return {}
""")

#: Uses the clock of Redis, one for all gateways. A clock that was set back adds no tokens.
_TAKE = Script("""#!lua
local per_minute, parts = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local full = per_minute * parts
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'updated_ms')
local tokens = full
if bucket[1] and bucket[2] then
  local passed = math.min(math.max(0, now - bucket[2]), parts)
  tokens = math.min(full, bucket[1] + passed * per_minute)
end
local allowed = tokens >= parts
if allowed then
  tokens = tokens - parts
end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.0f', tokens), 'updated_ms', string.format('%.0f', now))
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {allowed and '1' or '0', string.format('%.0f', tokens), string.format('%.0f', now)}
""")


class RedisIdempotencyLocks:
    """`ports/idempotency_locks`. One round trip each."""

    def __init__(
        self,
        link: RedisLink,
        *,
        lease_seconds: int = LEASE_TTL_SECONDS,
        mapping_seconds: int = IDEMPOTENCY_MAPPING_TTL_SECONDS,
    ) -> None:
        self._link = link
        self._lease_seconds = lease_seconds
        self._mapping_seconds = mapping_seconds

    async def lock(self, tenant_id: str, idempotency_key: str, token: str) -> bool:
        async with self._link.asking("lock a key") as client:
            key = f"idem_lock:{tenant_id}:{idempotency_key}"
            return bool(await client.set(key, token, nx=True, ex=IDEM_LOCK_TTL_SECONDS))

    async def unlock(self, tenant_id: str, idempotency_key: str, token: str) -> None:
        await self._link.run(_UNLOCK, (f"idem_lock:{tenant_id}:{idempotency_key}",), (token,))

    async def mapped(self, tenant_id: str, idempotency_key: str) -> Mapped | None:
        async with self._link.asking("tell a mapping") as client:
            run_id, payload_hash = await client.hmget(f"idem:{tenant_id}:{idempotency_key}", ["run_id", "payload_hash"])
        return Mapped(str(run_id), str(payload_hash)) if run_id and payload_hash else None

    async def remember(self, tenant_id: str, idempotency_key: str, mapped: Mapped, at_us: int) -> None:
        await self._link.run(
            _REMEMBER,
            (f"idem:{tenant_id}:{idempotency_key}",),
            (mapped.run_id, mapped.payload_hash, at_us // 1000, self._mapping_seconds),
        )

    async def forget(self, tenant_id: str, idempotency_key: str) -> None:
        async with self._link.asking("forget a mapping") as client:
            await client.delete(f"idem:{tenant_id}:{idempotency_key}")

    async def lease(self, run_id: str, lease_token: str) -> None:
        async with self._link.asking("note a lease") as client:
            # The first one wins: a run starts only once, so a second lease comes from a late worker (PRICED-113).
            await client.set(f"lease:{run_id}", lease_token, nx=True, ex=self._lease_seconds)

    async def extend_lease(self, run_id: str, lease_token: str) -> None:
        await self._link.run(_EXTEND, (f"lease:{run_id}",), (lease_token, self._lease_seconds))

    async def take(self, tenant_id: str, bucket: str, per_minute: int) -> Rate:
        answer = await self._link.run(_TAKE, (f"rl:{tenant_id}:{bucket}",), (per_minute, _PARTS, _BUCKET_TTL_SECONDS))
        allowed, tokens, now_ms = map(int, answer)
        full_in_ms = -(-(per_minute * _PARTS - tokens) // per_minute)
        return Rate(bool(allowed), per_minute, tokens // _PARTS, -(-(now_ms + full_in_ms) // 1000))
