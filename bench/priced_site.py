"""A whole deployment with priced runs: gateway, worker and keeper as processes, and tenants with money and keys."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import uvloop

from bench.priced_stores import STORES, Stores
from bench.stack import Stack, _environment, _until, stack
from pyoco_server.actions.priced.credit import credit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.config.priced import AwsSettings, PricedConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.ports.nats.link import open_link
from pyoco_server.wiring.operating import open_keys
from pyoco_server.wiring.priced import open_money

__all__ = ["Measured", "Site", "open_site"]

_TENANTS = 100
_CREDIT_USD_MICROS = 9_000_000_000_000
#: Nobody is told to wait.
_PER_MINUTE = "1000000000"
_SETTLE_SECONDS = 20.0
_LONG_AGO, _LATER = "2000-01-01T00:00:00Z", "2099-01-01T00:00:00Z"


@dataclass(frozen=True)
class Measured:
    count: int
    per_second: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Site:
    running: Stack
    stores: Stores
    config: PricedConfig
    #: One for each tenant.
    keys: list[str] = field(default_factory=list)

    def load(
        self, what: str, clients: int, tenants: int, seconds: float, run_ids: Sequence[str] = (), port: int = 0
    ) -> Measured:
        """What `priced_load` says; every answer was a good one."""
        address = [str(port or self.running.port), str(clients), str(seconds)]
        told = {"keys": self.keys[:tenants], "run_ids": run_ids, "ledger": self.stores.ledger_url}
        command = [sys.executable, "-m", "bench.priced_load", what, *address]
        ended = subprocess.run(command, input=json.dumps(told).encode(), stdout=subprocess.PIPE, check=True, timeout=90)
        found = json.loads(ended.stdout)
        good = {"submit": {"202"}, "complete": {"COMPLETED"}, "poll": {"200"}}[what]
        assert set(found["statuses"]) <= good, found
        return Measured(found["count"], found["per_second"], found["p50_ms"], found["p99_ms"])

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is delivered to workers, and what was sent meanwhile never is."""
        uvloop.run(self._pause(_LATER))
        try:
            yield
        finally:
            uvloop.run(self._pause(_LONG_AGO, purge=True))
            self.settle()

    async def _pause(self, until: str, *, purge: bool = False) -> None:
        stream = self.config.pack_stream
        link = await open_link(self.running.nats_url, "bench")
        try:
            if purge:
                await link.api(f"STREAM.PURGE.{stream}", {}, dict[str, Any])
            await link.api(f"CONSUMER.PAUSE.{stream}.dpp-worker", {"pause_until": until}, dict[str, Any])
        finally:
            await link.close()

    def settle(self) -> None:
        """Wait until the gateway rests: runs are shown in the lists a while after they were accepted."""
        gateway = self.running.gateway()
        deadline = time.monotonic() + _SETTLE_SECONDS
        while gateway.cpu_percent(0.2) > 20.0 and time.monotonic() < deadline:
            pass

    def gateway(self) -> psutil.Process:
        return self.running.gateway()


@contextlib.contextmanager
def open_site(name: str, slots: int) -> Iterator[Site]:
    """On the stores of this name. Everything is ready when it is given."""
    with STORES[name]() as stores, contextlib.ExitStack() as opened:
        settings = {**stores.environment, "PYOCO_PRICED_RATE_LIMIT_PER_MIN": _PER_MINUTE}
        running = opened.enter_context(stack(**settings))
        _until(f"http://127.0.0.1:{running.port}/readyz", 60)
        config = PricedConfig.read(settings)
        site = Site(running, stores, config, uvloop.run(_tenants(running.nats_url, config)))
        home = opened.enter_context(tempfile.TemporaryDirectory(prefix="pyoco-bench-priced-"))
        settings |= {"PYOCO_NATS_URL": running.nats_url, "PYOCO_PACK_SLOTS": str(slots)}
        for part in ("worker", "keeper"):
            (Path(home) / part).mkdir()
            opened.enter_context(_process(part, {**settings, "PYOCO_DATA_DIR": str(Path(home) / part)}))
        while not site.load("complete", 1, 1, 0.5).count:  # until the worker has done one
            pass
        yield site


@contextlib.contextmanager
def _process(part: str, settings: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", f"pyoco_server.doors.cli.{part}"]
    process = subprocess.Popen(command, env=_environment(**settings), stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _tenants(nats_url: str, config: PricedConfig, count: int = _TENANTS) -> list[str]:
    """The keys of so many tenants, each with more money than it can spend."""
    plain: list[str] = []
    nats = NatsBackendConfig(nats_url=nats_url)
    async with open_keys(nats) as keys, open_money(nats, config, AwsSettings()) as money:
        for number in range(count):
            tenant_id = f"tenant-{number}"
            key, record = make_key(tenant_id, nats.auth_pepper, time.time(), secrets.token_hex, secrets.token_urlsafe)
            assert await keys.add(record)
            await credit(money, tenant_id, _CREDIT_USD_MICROS, f"bench-{number}")
            plain.append(key)
    return plain
