"""`pyoco-server-admin`: manages API keys (section 19.5), money, backups, replicas and unreadable records."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.doors.cli.backup import backup, restore
from pyoco_server.doors.cli.budget import budget
from pyoco_server.doors.cli.grid.operate import program
from pyoco_server.doors.cli.ledger import ledger, tenant
from pyoco_server.doors.cli.nats_access import nats_permissions, prepare
from pyoco_server.doors.cli.packs import packs
from pyoco_server.doors.cli.replicas import replicas
from pyoco_server.doors.cli.run_records import run_records
from pyoco_server.doors.cli.shell import Group, run
from pyoco_server.errors import PepperMismatch, SeveralServers, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyoco_server.config import NatsBackendConfig
    from pyoco_server.core.api_key import KeyRecord
    from pyoco_server.ports.keys.port import Keys

__all__ = ["cli", "main"]


@click.group(cls=Group, example="pyoco-server-admin api-key create --tenant team-a")
@click.option("--nats-url", metavar="URL", help="Use this NATS server. [env: PYOCO_NATS_URL]")
@click.option("--data-dir", metavar="DIR", help="Data directory of `up`, with its ledger. [env: PYOCO_DATA_DIR]")
@click.pass_context
def cli(context: click.Context, nats_url: str | None, data_dir: str | None) -> None:
    """Operate a pyoco-server: the one that --nats-url names, or else the one that runs on this machine."""
    context.obj = functools.partial(_config, nats_url, data_dir)


def _config(nats_url: str | None, data_dir: str | None) -> NatsBackendConfig:
    """Return the settings. Called by each command after its arguments have been validated."""
    from pyoco_server.doors.cli.local_server import settle

    return settle(nats_url=nats_url, data_dir=data_dir).config


cli.add_command(backup)
cli.add_command(restore)
cli.add_command(budget)
cli.add_command(ledger)
cli.add_command(tenant)
cli.add_command(packs)
cli.add_command(nats_permissions)
cli.add_command(prepare)
cli.add_command(program)
cli.add_command(replicas)
cli.add_command(run_records)


@cli.group("api-key", cls=Group, example="pyoco-server-admin api-key list")
def api_key() -> None:
    """Create, list and revoke API keys."""


@api_key.command(
    "create",
    example="""\
pyoco-server-admin api-key create --tenant team-a
pyoco-server-admin api-key create --tenant team-a --label "nightly import" --expires 30d
pyoco-server-admin api-key create --tenant team-a --expires 2027-01-31""",
)
@click.option("--tenant", required=True, metavar="TENANT", help="Tenant of the key: letters, digits, '_', '-'.")
@click.option("--label", metavar="TEXT", help="What the key is for: one line, at most 200 characters.")
@click.option(
    "--expires",
    metavar="WHEN",
    help="When the key expires: a time from now (30d, 12h, 90m), a date (its first moment, UTC) or unix seconds."
    "  [default: never]",
)
@click.option(
    "--force-pepper",
    is_flag=True,
    help="Create the key even if the server has another PYOCO_AUTH_PEPPER. Existing keys stop working once"
    " the gateways use this one.",
)
@click.pass_obj
def create(
    config: Callable[[], NatsBackendConfig], tenant: str, label: str | None, expires: str | None, *, force_pepper: bool
) -> None:
    """Create a key and print it; it is never shown again.

    Reads PYOCO_AUTH_PEPPER, which must equal that of the gateways.
    """

    from pyoco_server.core.api_key import pepper_fingerprint
    from pyoco_server.core.names import is_tag
    from pyoco_server.core.priced.names import is_tenant

    if not is_tag(tenant):  # FLOW-41: tenants have the same format as tags
        raise UsageError(f"tenant {tenant!r} may hold letters, digits, '_' and '-'")
    if not is_tenant(tenant):
        click.echo("this tenant has more than 64 characters: its keys cannot be used for priced runs (/v1)", err=True)
    now = time.time()
    settings = config()
    pepper = _Pepper(pepper_fingerprint(settings.auth_pepper), _announced_pepper(settings), is_forced=force_pepper)
    plain, record = _run(_create(settings, pepper, tenant, _label(label), _expiry(expires, now), now))
    _print({**_shown(record), "api_key": plain})


@dataclass(frozen=True)
class _Pepper:
    """Fingerprints of the peppers of this command and of the server."""

    own: str
    #: From the server's discovery file. None: no discovery file.
    announced: str | None
    is_forced: bool


def _announced_pepper(config: NatsBackendConfig) -> str | None:
    """Return the pepper fingerprint of the local server with this NATS. None: no such server, or several that
    differ."""
    from pyoco_server.discovery import NATS, find

    with contextlib.suppress(SeveralServers):
        found = find(NATS, data_dir=config.data_dir, known=config.nats_url)
        return None if found is None else found.server.pepper_fingerprint
    return None


async def _check_pepper(keys: Keys, pepper: _Pepper) -> None:
    """Refuse a pepper that is not the server's (FIND-12). Raises PepperMismatch, Unavailable."""

    stored = await keys.pepper()
    expected = stored if stored is not None else pepper.announced
    if expected is None or expected == pepper.own:
        return
    if not pepper.is_forced:
        given = "PYOCO_AUTH_PEPPER is not set here" if pepper.own == "none" else "PYOCO_AUTH_PEPPER is another one here"
        raise PepperMismatch(
            f"{given}: the key would never work (fingerprint {pepper.own}, the server's is {expected}); set "
            "PYOCO_AUTH_PEPPER to the server's value, or change the server's pepper with --force-pepper: existing keys "
            "stop working then"
        )
    await keys.replace_pepper(pepper.own)
    click.echo(
        "the stored pepper is replaced: existing keys stop working, and the new key works, once every gateway was "
        "restarted with this PYOCO_AUTH_PEPPER",
        err=True,
    )


def _label(text: str | None) -> str | None:
    from pyoco_server.core.api_key import label_problem

    problem = label_problem(text or "")
    if problem is not None:
        raise UsageError(problem)
    return text or None


def _expiry(text: str | None, now: float) -> float | None:
    from pyoco_server.core.api_key import read_expiry

    if text is None:
        return None
    try:
        return read_expiry(text, now)
    except ValueError as error:
        raise UsageError(
            f"--expires {text!r}: {error}; example: pyoco-server-admin api-key create --tenant team-a --expires 30d"
        ) from error


@api_key.command("list", example="pyoco-server-admin api-key list")
@click.pass_obj
def list_keys(config: Callable[[], NatsBackendConfig]) -> None:
    """Show every key's id, tenant, label and dates; never the key."""
    _print([_shown(record) for record in _run(_list(config()))])


@api_key.command("revoke", example="pyoco-server-admin api-key revoke --key-id 0123456789abcdef")
@click.option("--key-id", required=True, metavar="ID", help="Key id, as shown by `api-key list`.")
@click.pass_obj
def revoke(config: Callable[[], NatsBackendConfig], key_id: str) -> None:
    """Revoke a key permanently; gateways refuse it within a second."""
    record = _run(_revoke(config(), key_id))
    if record is None:
        raise UsageError(f"there is no key {key_id!r}")
    _print(_shown(record))


def _run(coroutine: Any) -> Any:

    # Without a handler Python would print warnings, including stack traces (FLOW-429); errors are raised anyway.
    logging.getLogger().addHandler(logging.NullHandler())
    return asyncio.run(coroutine)


def _print(document: object) -> None:
    click.echo(json.dumps(document, indent=2))


def _shown(record: KeyRecord) -> dict[str, object]:
    """Return the public fields: neither the key nor its hash (FLOW-472)."""
    return {
        "key_id": record.key_id,
        "tenant_id": record.tenant_id,
        "label": record.label,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "last_used_at": record.last_used_at,
        "revoked_at": record.revoked_at,
    }


async def _create(
    config: NatsBackendConfig, pepper: _Pepper, tenant: str, label: str | None, expires_at: float | None, now: float
) -> tuple[str, KeyRecord]:
    import secrets

    from pyoco_server.core.api_key import make_key
    from pyoco_server.wiring.operating import open_keys

    async with open_keys(config) as keys:
        await _check_pepper(keys, pepper)
        while True:
            made = make_key(
                tenant, config.auth_pepper, now, secrets.token_hex, secrets.token_urlsafe, label, expires_at
            )
            if await keys.add(made[1]):  # False: the id is taken, so draw another
                return made


async def _list(config: NatsBackendConfig) -> list[KeyRecord]:
    from pyoco_server.wiring.operating import open_keys

    async with open_keys(config) as keys:
        return await keys.all()


async def _revoke(config: NatsBackendConfig, key_id: str) -> KeyRecord | None:

    from pyoco_server.core.names import is_tag
    from pyoco_server.wiring.operating import open_keys

    if not is_tag(key_id):
        return None
    async with open_keys(config) as keys:
        return await keys.revoke(key_id, time.time())


def main() -> None:
    run(cli, "pyoco-server-admin")


if __name__ == "__main__":
    main()
