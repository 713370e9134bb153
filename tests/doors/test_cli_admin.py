"""`python -m pyoco_server.admin_cli`: API keys from the command line (section 19.5), against a real NATS server."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import verify
from pyoco_server.ports.nats.link import Link
from pyoco_server.wiring.operating import open_keys
from support.gateways import environment, open_gateway
from support.servers import forget
from support.warm_processes import started

pytestmark = pytest.mark.usefixtures("real_nats")  # commands are processes

UNKNOWN = "0123456789abcdef"


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        assert self.code == 0, self.err
        assert self.err == ""
        return json.loads(self.out)


async def admin(config: NatsBackendConfig, *arguments: str, cwd: Path | None = None) -> Ended:
    command = ["-m", "pyoco_server.admin_cli", *arguments]
    process = await started(command, env=environment(config), cwd=cwd or Path.cwd())
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    assert process.returncode is not None
    assert out is not None
    assert err is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def test_a_key_is_made_shown_once_and_opens_the_gateway(config: NatsBackendConfig, tmp_path: Path) -> None:
    """FLOW-268 to FLOW-271, FLOW-356, FLOW-357, FLOW-471"""
    closed = replace(config, http_auth_mode="api_key", auth_pepper="pepper", data_dir=str(tmp_path))
    before = time.time()
    made = (await admin(closed, "api-key", "create", "--tenant", "team-a")).result
    assert made["tenant_id"] == "team-a"
    assert before <= made["created_at"] <= time.time()
    assert made["api_key"].startswith(f"pyoco_{made['key_id']}_")
    assert len(made["api_key"].split("_", 2)[2]) >= 43  # 32 bytes in URL-safe text
    async with open_gateway(closed, **{"X-API-Key": made["api_key"]}) as gateway:
        answer = await gateway.client.post("/runs", json={"flow_name": "hello"})
        snapshot = (await gateway.client.get(f"/runs/{answer.json()['run_id']}")).json()
        assert (snapshot["tenant_id"], snapshot["api_key_id"]) == ("team-a", made["key_id"])
        stored = await gateway.backend.keys.find(made["key_id"])
        assert stored is not None
        assert made["api_key"].split("_", 2)[2] not in repr(stored)
        opens = [verify(made["api_key"], stored, pepper, time.time()) for pepper in ("pepper", "")]
        assert opens == [True, False]


async def test_the_list_shows_neither_key_nor_hash(config: NatsBackendConfig) -> None:
    """FLOW-472"""
    assert (await admin(config, "api-key", "list")).result == []
    made = [(await admin(config, "api-key", "create", "--tenant", tenant)).result for tenant in ("a", "b")]
    empty = dict.fromkeys(("label", "expires_at", "last_used_at", "revoked_at"))
    wanted = [{name: key[name] for name in ("key_id", "tenant_id", "created_at")} | empty for key in made]
    listed = await admin(config, "api-key", "list")
    assert listed.result == wanted
    async with open_keys(config) as keys:
        records = await keys.all()
    for hidden in (*(key["api_key"] for key in made), *(record.key_hash for record in records)):
        assert hidden not in listed.out


async def test_a_tenant_that_priced_runs_cannot_have_is_told_when_its_key_is_made(config: NatsBackendConfig) -> None:
    """PRICED-62: for everything else its key is as good as any"""
    for length, said in ((64, False), (65, True)):
        made = await admin(config, "api-key", "create", "--tenant", "x" * length)
        assert (made.code, json.loads(made.out)["tenant_id"]) == (0, "x" * length)
        assert ("cannot be used for priced runs (/v1)" in made.err) is said


async def test_a_key_may_have_a_label_and_an_end(config: NatsBackendConfig) -> None:
    """FLOW-471, FLOW-472"""
    options = ["--label", "nightly import ü", "--expires", "30d"]
    made = (await admin(config, "api-key", "create", "--tenant", "a", *options)).result
    assert made["label"] == "nightly import ü"
    assert made["expires_at"] == made["created_at"] + 30 * 86_400
    await admin(config, "api-key", "create", "--tenant", "b", "--expires", "2099-01-31", "--label", "")
    async with open_keys(config) as keys:
        await keys.used(made["key_id"], 1_700_000_000.0)
    first, second = (await admin(config, "api-key", "list")).result
    del made["api_key"]
    assert first == made | {"last_used_at": 1_700_000_000.0}
    assert (second["label"], second["expires_at"], second["last_used_at"]) == (None, 4_073_500_800.0, None)
    revoked = (await admin(config, "api-key", "revoke", "--key-id", made["key_id"])).result
    assert revoked == first | {"revoked_at": revoked["revoked_at"]}


async def test_a_key_is_revoked_once(config: NatsBackendConfig) -> None:
    """FLOW-473, FLOW-474"""
    made = (await admin(config, "api-key", "create", "--tenant", "a")).result
    first = (await admin(config, "api-key", "revoke", "--key-id", made["key_id"])).result
    del made["api_key"]
    assert first == made | {"revoked_at": first["revoked_at"]}
    assert made["created_at"] <= first["revoked_at"] <= time.time()
    assert (await admin(config, "api-key", "revoke", "--key-id", made["key_id"])).result == first
    assert (await admin(config, "api-key", "list")).result == [first]


async def test_a_wrong_command_ends_with_1_and_an_example(config: NatsBackendConfig) -> None:
    """FLOW-41, FLOW-424, FLOW-426, FLOW-429, FLOW-430, FLOW-474"""
    cases: list[tuple[list[str], str]] = [
        (["api-key", "revoke", "--key-id", UNKNOWN], UNKNOWN),
        (["api-key", "revoke", "--key-id", "*"], "'*'"),
        (["api-key", "revoke", "--key-id", ""], "''"),
        (["api-key", "revoke"], "--key-id"),
        (["api-key", "create"], "--tenant"),
        (["api-key", "create", "--tenant", "a.b"], "'a.b'"),
        (["api-key", "create", "--tenant", ""], "''"),
        (["api-key", "create", "--tenant", "é"], "'é'"),
        (["api-key", "create", "--tenant", "a", "more"], "more"),
        (["api-key", "create", "--tenant", "a", "--expires", "soon"], "'soon'"),
        (["api-key", "create", "--tenant", "a", "--expires", ""], "''"),
        (["api-key", "create", "--tenant", "a", "--expires", "0d"], "ahead"),
        (["api-key", "create", "--tenant", "a", "--expires", "2020-01-01"], "ahead"),
        (["api-key", "create", "--tenant", "a", "--label", "x" * 201], "200"),
        (["api-key", "create", "--tenant", "a", "--label", "two\nlines"], "one line"),
        (["api-key", "nonsense"], "nonsense"),
        (["api-key"], "command"),
        ([], "command"),
        (["--nats-url", "nonsense://", "api-key", "list"], "PYOCO_NATS_URL"),
    ]
    for arguments, told in cases:
        ended = await admin(config, *arguments)
        assert (ended.code, ended.out) == (1, ""), arguments
        assert ended.err.startswith("ERR-PYOCO-0018: "), arguments
        assert told.lower() in ended.err.lower(), arguments
        assert "example: " in ended.err, arguments
        assert "Traceback" not in ended.err, arguments


async def test_the_address_may_be_an_option(config: NatsBackendConfig, link: Link) -> None:
    """FLOW-475"""
    nowhere = replace(config, nats_url="nats://127.0.0.1:1")
    made = await admin(nowhere, "--nats-url", config.nats_url, "api-key", "create", "--tenant", "a")
    assert made.result["tenant_id"] == "a"
    await forget(link, config)


async def test_without_nats_it_ends_with_1(config: NatsBackendConfig, unused_port: int) -> None:
    """FLOW-475"""
    nowhere = replace(config, nats_url=f"nats://127.0.0.1:{unused_port}")
    ended = await admin(nowhere, "api-key", "list")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("ERR-PYOCO-0003: ")
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("arguments", [["--help"], ["api-key", "--help"], ["api-key", "create", "--help"]])
async def test_help_shows_an_example(config: NatsBackendConfig, arguments: list[str]) -> None:
    """FLOW-423, FLOW-428"""
    ended = await admin(config, *arguments)
    assert (ended.code, ended.err) == (0, "")
    assert "Example:\n  pyoco-server-admin api-key " in ended.out


async def test_help_shows_how_to_say_when_a_key_ends(config: NatsBackendConfig) -> None:
    """FLOW-428"""
    out = (await admin(config, "api-key", "create", "--help")).out
    assert all(line in out for line in ("--label TEXT", "--expires WHEN", "--expires 30d\n", "--expires 2027-01-31\n"))
