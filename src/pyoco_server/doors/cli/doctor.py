"""`pyoco-server doctor`: checks a deployment and reports what to fix."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import httpx
from rich.console import Console

from pyoco_server.actions.examine import Surroundings, examine
from pyoco_server.config import (
    AwsSettings,
    GridConfig,
    NatsBackendConfig,
    PricedConfig,
    grid_from_env,
    priced_from_env,
    unknown_variables,
    unused_variables,
    variables_for_tests,
)
from pyoco_server.core.diagnosis import Finding, Level, diagnose, settings_refused, worst
from pyoco_server.core.diagnosis.facts import Facts, GatewayFacts, MachineFacts, Monitor, OwnNats, Unknown, WaitingRuns
from pyoco_server.core.diagnosis.nats import is_local
from pyoco_server.doors.cli.doctor_report import as_document, say
from pyoco_server.doors.cli.local_server import settle
from pyoco_server.embedded import reachable_host
from pyoco_server.errors import SettingError, UsageError
from pyoco_server.logs import redact_url
from pyoco_server.ports.deployment.machine import Place, disks_of, own_nats_of, temporary_place
from pyoco_server.ports.deployment.priced import look_at_priced
from pyoco_server.wiring.backend import versions
from pyoco_server.wiring.offer import packs_here
from pyoco_server.wiring.operating import ledger_file, open_deployment
from pyoco_server.wiring.priced import priced_openers

__all__ = ["DoctorOptions", "doctor"]

_PAGE_SECONDS = 5.0
_OK = 200
#: More than the body that a gateway returns.
_READY_BYTES_MAX = 64 * 1024
_SECOND = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options of the command line. None: the option was not given."""

    nats_url: str | None
    nats_http: str | None
    server: str | None
    data_dir: str | None
    as_json: bool
    strict: bool


def doctor(options: DoctorOptions) -> int:
    """Print the findings. Return 1 if data would be lost or work would stop; with `strict`, also for warnings.

    Reads only, with short timeouts: whatever does not respond is a finding itself. Raises UsageError.
    """
    for name, url in (("--server", options.server), ("--nats-http", options.nats_http)):
        _check_address(name, url)
    # Log lines are suppressed: the findings contain everything.
    logging.getLogger().addHandler(logging.NullHandler())
    nats_url = options.nats_url or os.environ.get("PYOCO_NATS_URL", "")
    try:
        settled = settle(nats_url=options.nats_url, data_dir=options.data_dir)
        priced, grid = priced_from_env(), grid_from_env()
    except SettingError as error:
        findings: tuple[Finding, ...] = (settings_refused(str(error)),)
    else:
        config = settled.config
        own = own_nats_of(Path(config.data_dir))
        if options.server is None and settled.found is not None and settled.found.server.http:
            options = replace(options, server=settled.found.server.http[0])
        if own is not None and not settled.has_nats:
            config = replace(config, nats_url=f"nats://{reachable_host(own.host)}:{own.port}")
        nats_url = config.nats_url
        with _progress() as tell:
            findings = diagnose(asyncio.run(_examine(_Settings(config, *priced, grid), own, options, tell)))
    if options.as_json:
        click.echo(json.dumps(as_document(findings, redact_url(nats_url), time.time()), indent=2, ensure_ascii=False))
    else:
        say(findings)
    bad = Level.WARNING if options.strict else Level.DANGER
    return int(worst(findings).rank >= bad.rank)


def _check_address(option: str, url: str | None) -> None:
    if url is None:
        return
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return
    raise UsageError(f"{option} {redact_url(url)!r} is not an address; example: {option} http://127.0.0.1:8000")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """On a terminal, show which component is being checked; the text is erased at the end."""
    if not sys.stderr.isatty():
        yield lambda word: None
        return
    with Console(stderr=True).status("checking") as status:
        yield lambda word: status.update(f"checking {word}")


@dataclass(frozen=True)
class _Settings:
    config: NatsBackendConfig
    priced: PricedConfig
    aws: AwsSettings
    grid: GridConfig


async def _examine(
    settings: _Settings, own: OwnNats | None, options: DoctorOptions, tell: Callable[[str], None]
) -> Facts:
    config, priced = settings.config, settings.priced if settings.priced.priced_enabled else None
    monitor_url = options.nats_http or (own.monitor_url if own is not None else "")
    monitor, gateway = None, None
    if monitor_url or options.server:  # a client takes 0.2 s to create
        tell("HTTP")
        async with httpx.AsyncClient(timeout=_PAGE_SECONDS) as http:
            monitor = await _monitor(http, monitor_url.rstrip("/")) if monitor_url else None
            gateway = await _gateway(http, options.server.rstrip("/")) if options.server else None
    machine = MachineFacts(
        disks=disks_of([*_places(config, own, monitor), *(_ledger_place(config, priced) if priced else [])]),
        own_nats=own,
        typos=unknown_variables(os.environ),
        unused=unused_variables(os.environ),
        for_tests=variables_for_tests(os.environ),
        versions={**versions(), "Python": platform.python_version()},
        packs=None if priced is None else await asyncio.to_thread(packs_here, priced),
    )
    money = None
    if priced is not None:
        tell("the ledger")
        money = await look_at_priced(config, priced, priced_openers(config, priced, settings.aws))
    async with open_deployment(config, priced, settings.grid) as deployment:
        return await examine(deployment, config, Surroundings(machine, monitor, gateway, money), tell)


def _ledger_place(config: NatsBackendConfig, priced: PricedConfig) -> list[Place]:
    """Return the disk location of the ledger file, or no location if there is none."""
    file = ledger_file(config, priced)
    return [("ledger", Path(file.path), False)] if file is not None and Path(file.path).exists() else []


def _places(config: NatsBackendConfig, own: OwnNats | None, monitor: Monitor | Unknown | None) -> list[Place]:
    places: list[Place] = [("data folder", Path(config.data_dir), False), temporary_place()]
    if config.wheel_sync_enabled:
        places.append(("wheels", Path(config.wheel_sync_dir), False))
    hosts = [urlsplit(part).hostname or "" for part in config.nats_url.split(",")]
    store = own.store_dir if own is not None else ""
    if isinstance(monitor, Monitor) and all(map(is_local, hosts)):
        store = monitor.store_dir
    if store and Path(store).exists():  # otherwise it is elsewhere: in a container, or on another machine
        places.append(("store of NATS", Path(store), True))
    return places


async def _monitor(http: httpx.AsyncClient, url: str) -> Monitor | Unknown:
    shown = redact_url(url)
    try:
        async with asyncio.timeout(_PAGE_SECONDS):
            page: dict[str, Any] = (await http.get(f"{url}/varz")).raise_for_status().json()
        jetstream = page["jetstream"]["config"]
        return Monitor(
            server_name=str(page["server_name"]),
            sync_seconds=0.0 if jetstream.get("sync_always") else int(jetstream["sync_interval"]) / _SECOND,
            storage_bytes=int(page["jetstream"].get("stats", {}).get("storage", 0)),
            storage_bytes_max=int(jetstream.get("max_storage", 0)),
            store_dir=str(jetstream.get("store_dir", "")),
        )
    except httpx.HTTPStatusError as error:  # its message contains the complete URL
        return Unknown(f"{shown} does not respond like a monitoring port: HTTP status {error.response.status_code}")
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        return Unknown(f"{shown} does not respond like a monitoring port: {error or type(error).__name__}")
    except (ValueError, LookupError, TypeError, AttributeError):
        return Unknown(f"{shown} does not report JetStream")


async def _gateway(http: httpx.AsyncClient, url: str) -> GatewayFacts:
    began = time.monotonic()
    health = await _status(http, f"{url}/health")
    ready, stores = await _ready(http, f"{url}/ready") if health else (0, True)
    seconds = time.monotonic() - began
    listed = await _status(http, f"{url}/runs?limit=1") if health else 0
    waiting = await _waiting(http, f"{url}/queues") if ready == _OK else None
    is_open = {200: True, 401: False, 403: False}.get(listed)
    return GatewayFacts(
        url=redact_url(url),
        health=health,
        ready=ready,
        stores=stores,
        is_open=Unknown(f"/runs returned {listed or 'nothing'}") if is_open is None else is_open,
        seconds=seconds,
        waiting=waiting,
    )


async def _waiting(http: httpx.AsyncClient, url: str) -> dict[str, WaitingRuns] | None:
    """Return the runs that wait, by tag. None: the gateway does not say."""
    try:
        async with asyncio.timeout(_PAGE_SECONDS):
            answer = await http.get(url)
        items = answer.raise_for_status().json()["items"]
        return {str(each["tag"]): WaitingRuns(int(each["depth"]), _instant(each["oldest_at"])) for each in items}
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, LookupError, TypeError, ValueError):
        return None


def _instant(value: Any) -> float | None:
    return None if value is None else float(value)


async def _ready(http: httpx.AsyncClient, url: str) -> tuple[int, bool]:
    """Return the HTTP status (0: no response), and whether the last write of the gateway was stored."""
    body = b""
    try:
        async with asyncio.timeout(_PAGE_SECONDS), http.stream("GET", url) as answer:
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > _READY_BYTES_MAX:
                    break
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return 0, True
    try:
        return answer.status_code, json.loads(body).get("store") is not False
    except (ValueError, AttributeError):  # not a gateway
        return answer.status_code, True


async def _status(http: httpx.AsyncClient, url: str) -> int:
    """Return the HTTP status. 0: no response."""
    try:
        async with asyncio.timeout(_PAGE_SECONDS), http.stream("GET", url) as answer:
            return answer.status_code
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return 0
