"""Authentication, in the one place that decides it, and the stores that it needs."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from pyoco_server.actions.authenticate import NOBODY, authenticate, authenticate_payer, check_payer
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.core.priced.run import Tenant, TenantStatus
from pyoco_server.core.run import Caller
from pyoco_server.errors import KeyMissing, KeyRefused, Unavailable
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.wiring import backend as wiring
from support.faulty_ports import BEFORE, Trouble, with_trouble


@pytest.fixture
async def backend(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[GatewayBackend]:
    closed = replace(config, data_dir=str(tmp_path), http_auth_mode="api_key", auth_pepper="pepper")
    async with wiring.open_gateway_backend(closed) as backend:
        yield backend


async def a_key(backend: GatewayBackend, tenant_id: str = "team-a") -> tuple[str, Caller]:
    plain, record = make_key(tenant_id, "pepper", time.time(), secrets.token_hex, secrets.token_urlsafe)
    assert await backend.keys.add(record)
    return plain, Caller(tenant_id, record.key_id)


async def test_a_key_says_whose_it_is(backend: GatewayBackend) -> None:
    """FLOW-272"""
    plain, caller = await a_key(backend)
    assert await authenticate(backend, plain) == caller


async def test_a_key_that_cannot_be_looked_up_is_neither_right_nor_wrong(backend: GatewayBackend) -> None:
    """FLOW-264"""
    plain, caller = await a_key(backend)
    troubled = with_trouble(backend, Trouble({"keys.find": [BEFORE]}), "keys")
    with pytest.raises(Unavailable):
        await authenticate(troubled, plain)
    assert await authenticate(troubled, plain) == caller


@pytest.mark.parametrize("plain", ["nonsense", "*", ">", "pyoco_0123456789abcdef_short", "é", " ", "x" * 100_000])
async def test_what_cannot_be_a_key_is_refused_without_a_question(backend: GatewayBackend, plain: str) -> None:
    """FLOW-263, FLOW-269: guessing keys causes no work in the store"""
    trouble = Trouble()
    with pytest.raises(KeyRefused):
        await authenticate(with_trouble(backend, trouble, "keys"), plain)
    assert trouble.calls == []


@pytest.mark.parametrize("plain", [None, ""])
async def test_no_key_is_missing(backend: GatewayBackend, plain: str | None) -> None:
    """FLOW-262"""
    with pytest.raises(KeyMissing):
        await authenticate(backend, plain)


async def test_in_mode_none_a_valid_key_counts_and_an_invalid_one_is_ignored(backend: GatewayBackend) -> None:
    """FLOW-266 as SAFE-5 changes it"""
    opened = replace(backend, config=replace(backend.config, http_auth_mode="none"))
    plain, caller = await a_key(backend)
    for nothing in (None, "", "nonsense", plain + "x"):
        assert await authenticate(opened, nothing) == NOBODY
    assert await authenticate(opened, plain) == caller


async def test_in_mode_none_a_key_that_cannot_be_checked_is_not_ignored(backend: GatewayBackend) -> None:
    """SAFE-5: its caller would act without its tenant, and not know it."""
    opened = replace(backend, config=replace(backend.config, http_auth_mode="none"))
    plain, _ = await a_key(backend)
    with pytest.raises(Unavailable):
        await authenticate(with_trouble(opened, Trouble({"keys.find": [BEFORE]}), "keys"), plain)


@pytest.mark.parametrize("mode", ["none", "api_key"])
async def test_whoever_pays_shows_a_key_whatever_the_settings_say(
    backend: GatewayBackend, mode: Literal["none", "api_key"]
) -> None:
    """PRICED-62, PRICED-170"""
    plain, caller = await a_key(backend)
    asked = replace(backend, config=replace(backend.config, http_auth_mode=mode))
    assert await authenticate_payer(asked, plain) == caller
    for nothing in (None, ""):
        with pytest.raises(KeyMissing):
            await authenticate_payer(asked, nothing)
    with pytest.raises(KeyRefused):
        await authenticate_payer(asked, plain + "x")


@pytest.mark.parametrize(("tenant_id", "may"), [("x" * 64, True), ("A_b-9", True), ("x" * 65, False), ("a.b", False)])
async def test_whoever_pays_is_a_tenant_the_ledger_can_have(backend: GatewayBackend, tenant_id: str, may: bool) -> None:
    """PRICED-62"""
    plain, caller = await a_key(backend, tenant_id)
    if may:
        assert await authenticate_payer(backend, plain) == caller
    else:
        with pytest.raises(KeyRefused):
            await authenticate_payer(backend, plain)


async def test_a_suspended_tenant_does_not_pay() -> None:
    """PRICED-62: a tenant unknown to the ledger is allowed"""
    check_payer(None)
    check_payer(Tenant(tenant_id="a", display_name="a"))
    with pytest.raises(KeyRefused):
        check_payer(Tenant(tenant_id="a", display_name="a", status=TenantStatus.SUSPENDED))
