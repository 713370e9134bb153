"""Build the stores of priced runs, except the ledger, from settings.

Queue and objects are in JetStream, or in SQS and S3; budgets are in the ledger, in Redis, or in memory.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyoco_server.config import AwsSettings, NatsBackendConfig, PricedConfig
from pyoco_server.errors import UsageError
from pyoco_server.ports.budget.memory import BUDGETS, MemoryBudget
from pyoco_server.ports.budget.port import Budget
from pyoco_server.ports.budget.sql import SqlBudget
from pyoco_server.ports.idempotency_locks.memory import LOCKS, MemoryIdempotencyLocks
from pyoco_server.ports.idempotency_locks.port import IdempotencyLocks
from pyoco_server.ports.inputs.jetstream import JetStreamInputs
from pyoco_server.ports.inputs.port import Inputs
from pyoco_server.ports.ledger.port import Ledger
from pyoco_server.ports.memory.named import name_in
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.pack_queue.jetstream import JetStreamPackQueue
from pyoco_server.ports.pack_queue.port import PackQueue
from pyoco_server.ports.results.jetstream import JetStreamResults
from pyoco_server.ports.results.port import Results
from pyoco_server.ports.results.secret import signing_secret

if TYPE_CHECKING:
    from pyoco_server.ports.redis.link import RedisLink

__all__ = ["Stores", "need", "open_budget", "open_redis", "open_stores"]

#: The optional extra that provides each module.
_EXTRAS = {"psycopg": "postgres", "redis": "redis", "aiobotocore": "aws"}


def need(module: str, variable: str) -> None:
    """Raises UsageError if the package that this setting needs is not installed."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = _EXTRAS[module]
        raise UsageError(f"{variable} needs more packages; example: pip install 'pyoco-server[{extra}]'") from error


class _Settings(Protocol):
    """The part of `PricedSettings` used here."""

    @property
    def config(self) -> NatsBackendConfig: ...
    @property
    def priced(self) -> PricedConfig: ...
    @property
    def aws(self) -> AwsSettings: ...
    @property
    def signs(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Stores:
    queue: PackQueue
    results: Results
    #: In the same service as the results.
    inputs: Inputs


@contextlib.asynccontextmanager
async def open_stores(settings: _Settings, link: Link) -> AsyncIterator[Stores]:
    """Construct the stores. Their `start` methods create the resources they need.

    Raises UsageError, SettingError.
    """
    async with AsyncExitStack() as opened:
        queue = await _queue(opened, settings, link)
        opened.push_async_callback(queue.close)
        results, inputs = await _bytes(opened, settings, link)
        opened.push_async_callback(inputs.close)
        opened.push_async_callback(results.close)
        yield Stores(queue=queue, results=results, inputs=inputs)


async def _queue(opened: AsyncExitStack, settings: _Settings, link: Link) -> PackQueue:
    priced = settings.priced
    if not priced.pack_queue_url:
        return JetStreamPackQueue(link, priced, settings.config.jetstream_replicas)
    need("aiobotocore", "PYOCO_PACK_QUEUE_URL")
    from pyoco_server.ports.aws.client import open_sqs  # of an extra
    from pyoco_server.ports.pack_queue.sqs import SqsPackQueue

    sqs = await opened.enter_async_context(open_sqs(settings.aws))
    return SqsPackQueue(sqs, priced.pack_queue_url, priced.priced_lease_ttl_sec)


async def _bytes(opened: AsyncExitStack, settings: _Settings, link: Link) -> tuple[Results, Inputs]:
    config, priced = settings.config, settings.priced
    if not priced.results_url:
        replicas = config.jetstream_replicas
        secret = await signing_secret(link, config, priced) if settings.signs else b""
        results = JetStreamResults(link, JetStreamObjects(link, priced.results_bucket), priced, replicas, secret)
        return results, JetStreamInputs(link, JetStreamObjects(link, priced.pack_input_bucket), priced, replicas)
    need("aiobotocore", "PYOCO_RESULTS_URL")
    from pyoco_server.ports.aws.client import open_s3  # of an extra
    from pyoco_server.ports.inputs.s3 import S3Inputs
    from pyoco_server.ports.results.s3 import S3Results

    s3 = await opened.enter_async_context(open_s3(settings.aws))
    region = settings.aws.region
    return S3Results(s3, priced.results_url, region, priced.priced_retention_sec), S3Inputs(s3, priced, region)


@contextlib.asynccontextmanager
async def open_redis(priced: PricedConfig) -> AsyncIterator[RedisLink | None]:
    """Open Redis; yields None if the budgets are in the ledger or in memory."""
    if not priced.is_split or name_in(priced.budget_url) is not None:
        yield None
        return
    need("redis", "PYOCO_BUDGET_URL")
    from pyoco_server.ports.redis.link import RedisLink  # of an extra

    link = RedisLink(priced.budget_url)
    try:
        yield link
    finally:
        await link.close()


def open_budget(
    redis: RedisLink | None, ledger: Ledger, priced: PricedConfig
) -> tuple[Budget, IdempotencyLocks | None]:
    lease_seconds = priced.priced_lease_ttl_sec
    if name := name_in(priced.budget_url):
        return MemoryBudget(BUDGETS.of(name)), MemoryIdempotencyLocks(LOCKS.of(name), lease_seconds=lease_seconds)
    if redis is None:
        return SqlBudget(ledger), None
    from pyoco_server.ports.budget.redis import RedisBudget  # of an extra
    from pyoco_server.ports.idempotency_locks.redis import RedisIdempotencyLocks

    return RedisBudget(redis), RedisIdempotencyLocks(redis, lease_seconds=lease_seconds)
