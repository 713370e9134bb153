"""The url pack and the site it fetches from, for tests."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.executors.packs.port import Context, Execute
from pyoco_server.executors.packs.url import executor
from pyoco_server.ports.web.pinned import PinnedWeb
from support.priced.url_sites import (
    Authority,
    Dialled,
    NowhereElse,
    Site,
    page,
    site_of,
)

__all__ = ["BASE", "EACH", "authority", "context", "named", "patience", "reaching", "reasons", "run", "site"]

BASE, EACH = 5_000, 2_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not say how long a fetch may take has no busy machine in mind."""
    monkeypatch.setattr("pyoco_server.executors.packs.url.FETCH_TIMEOUT_SECONDS_MAX", 100)


@pytest.fixture
def site(authority: Authority) -> Iterator[Site]:
    with site_of(authority, {"/": page("<title>Home</title><p>Hello")}) as site:
        yield site


def context(seconds: float = 200.0, reserved_usd_micros: int = 1_000_000) -> Context:
    return Context(
        run_id="5b0c6f7e-5a3f-4a3c-8f0e-1c3f6c1f2a10",
        tenant_id="acme",
        trace_id=None,
        deadline=time.monotonic() + seconds,
        min_reliability_score=0.8,
        artifacts={},
        reserved_usd_micros=reserved_usd_micros,
    )


def run(
    execute: Execute,
    urls: list[str],
    ctx: Context | None = None,
    defects: dict[str, int] | None = None,
    **more: Any,
) -> PackResult:
    """Checked as every result is: each URL is in exactly one list (PRICED-146), the whole can be stored, and nothing
    went wrong but what was foreseen."""
    result = execute({"urls": urls, **more}, ctx or context())
    told = [*result.data["results"], *result.discard_log, *result.blocked_log]
    assert sorted(row["url"] for row in told) == sorted(urls)
    assert result.meta == ({"url": {"defects": defects}} if defects else {})
    json.dumps([result.data, list(told)], ensure_ascii=False, allow_nan=False).encode()
    return result


def reaching(site: Site, **more: Any) -> Execute:
    """As a deployment does that lets tests reach one place, by real sockets; and no other one, whatever it does."""

    def look_up(_: str) -> list[str]:
        raise AssertionError("a name was looked up")

    web = PinnedWeb(str(site.authority.ca_file), look_up=look_up, network=NowhereElse(site.port))
    return executor(PackConfig(url_pack_test_allow=site.place, **more), web)


def named(site: Site, names: dict[str, list[str]], dialled: Dialled | None = None, **more: Any) -> Execute:
    """With a resolver that knows these names, and a network in which every address is that site."""

    def look_up(name: str) -> list[str]:
        if name not in names:
            raise socket.gaierror(-2, "unknown")
        return names[name]

    web = PinnedWeb(str(site.authority.ca_file), look_up=look_up, network=dialled or Dialled(site.port))
    return executor(PackConfig(**more), web)


def reasons(result: PackResult) -> list[str]:
    return [row["reason"] for row in (*result.discard_log, *result.blocked_log)]
