"""The Redis connection of budget and hints: bounded in time, without retries, errors translated into ours."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from pyoco_server.errors import DependencyUnavailable, SettingError
from pyoco_server.logs import get_logger

__all__ = ["RedisLink", "Script", "ScriptRefused"]

log = get_logger(__name__)

#: Limit of one call, connecting included: readiness must be known within this time.
_PATIENCE_SECONDS = 2
_CONNECTIONS_MAX = 64
_OLDEST_MAJOR = 7
#: Prefix of our scripts' error codes. Redis's own errors begin differently.
_REFUSAL = "DPP_"


class ScriptRefused(Exception):
    """One of our scripts stopped before its first write. `code` is its error code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Script:
    """A Lua script. Once loaded, the server finds it by its digest."""

    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


class RedisLink:
    """A pool of connections. Every failure except a script's own refusal raises DependencyUnavailable.

    The operation may then have happened. Nothing is retried here, so that the caller knows whether it repeats itself.
    """

    def __init__(self, url: str) -> None:
        """Does not connect yet. Raises SettingError."""
        try:
            pool = redis.BlockingConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS_MAX,
                timeout=_PATIENCE_SECONDS,
                socket_timeout=_PATIENCE_SECONDS,
                socket_connect_timeout=_PATIENCE_SECONDS,
                decode_responses=True,
                # With protocol 3 the client expects push messages, and mistakes a closed connection for a usable one.
                protocol=2,
                # By default the client tries three times. A repeated reserve would return "already reserved".
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError:
            # Not chained: the library's message may contain part of the password.
            raise SettingError("PYOCO_BUDGET_URL is not the address of a Redis; example: redis://host:6379/0") from None
        self._client: redis.Redis = redis.Redis.from_pool(pool)
        self._warnings: tuple[str, ...] = ()

    async def start(self) -> None:
        """Check the server once.

        Raises SettingError if it cannot hold money; lesser problems are logged as warnings.
        """
        async with self.asking("introduce itself") as client:
            info = await client.info()
        self._warnings = _judge(info)
        for warning in self._warnings:
            log.warning(warning)

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings of `start`, for the doctor."""
        return self._warnings

    async def close(self) -> None:
        await self._client.aclose()

    async def ping(self) -> None:
        """Raises DependencyUnavailable."""
        async with self.asking("answer") as client:
            await client.ping()

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int]) -> list[str]:
        """Run a script.

        One round trip; two the first time after the server has lost its scripts. Raises ScriptRefused.
        """
        async with self.asking("run a script") as client:
            try:
                answer = await client.evalsha(script.digest, len(keys), *keys, *map(str, arguments))
            except NoScriptError:  # it did not run, so this is not a retry
                answer = await client.eval(script.text, len(keys), *keys, *map(str, arguments))
        return cast(list[str], answer)

    @asynccontextmanager
    async def asking(self, doing: str) -> AsyncIterator[redis.Redis]:
        """The only place that translates errors of Redis into ours. Limits the block to _PATIENCE_SECONDS."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                yield self._client
        except ResponseError as error:
            code = str(error).partition(" ")[0]
            if code.startswith(_REFUSAL):
                raise ScriptRefused(code) from None
            raise DependencyUnavailable(f"Redis would not {doing}: {type(error).__name__}") from error
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            raise DependencyUnavailable(f"Redis did not {doing}: {type(error).__name__}") from error


def _judge(info: dict[str, Any]) -> tuple[str, ...]:
    """Return warnings about a server with this INFO (PRICED-42). Raises SettingError."""
    version = str(info.get("redis_version", ""))  # Valkey reports the Redis version that it is compatible with
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < _OLDEST_MAJOR:
        raise SettingError(
            f"PYOCO_BUDGET_URL: Redis {_OLDEST_MAJOR} or later is needed, and this is {version or 'unknown'}"
        )
    if info.get("cluster_enabled"):
        raise SettingError("PYOCO_BUDGET_URL: a Redis Cluster cannot hold budgets; give a single primary")
    warnings = []
    if (policy := info.get("maxmemory_policy", "noeviction")) != "noeviction":
        warnings.append(f"Redis may throw budgets away: maxmemory-policy is {policy}, and must be noeviction")
    if not info.get("aof_enabled"):
        warnings.append("Redis may forget budgets when it restarts: appendonly is off, and must be on")
    return tuple(warnings)
