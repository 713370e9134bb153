"""Settings that commands take from a server on this machine if nothing else configures them (FIND-4, FIND-5)."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from pyoco_server.config import NatsBackendConfig
from pyoco_server.discovery import FRAMES, NATS, FoundServer, Need, find, find_in, is_quiet
from pyoco_server.errors import SeveralServers
from pyoco_server.frames.addresses import Address

__all__ = ["Settled", "find_door", "say", "settle", "settle_nats"]


@dataclass(frozen=True)
class Settled:
    """The effective settings, and the local server that some of them come from."""

    config: NatsBackendConfig
    found: FoundServer | None
    #: Whether a NATS URL is configured or was discovered. False: it is the built-in default.
    has_nats: bool


def settle_nats(*, nats_url: str | None = None, option: str = "--nats-url", **given: Any) -> Settled:
    """Return the settings from, in this order: options, environment, dotenv file, a local server, defaults.

    Prints on stderr which server is used. `option` is this command's option for the NATS URL. Raises SettingError,
    SeveralServers.
    """
    config = NatsBackendConfig.from_env(nats_url=nats_url, **given)  # reads the dotenv file, too
    if nats_url or "PYOCO_NATS_URL" in os.environ:
        return Settled(config, None, has_nats=True)
    known_dir = config.data_dir if given.get("data_dir") or "PYOCO_DATA_DIR" in os.environ else None
    found = find(Need("nats", option), data_dir=known_dir)
    if found is None:
        return Settled(config, None, has_nats=False)
    if known_dir is not None and (own := _own_nats(Path(known_dir), found)) is not None:
        return Settled(replace(config, nats_url=own), None, has_nats=False)
    say(found)
    data_dir = known_dir or found.server.data_dir
    return Settled(replace(config, nats_url=found.server.nats_url, data_dir=data_dir), found, has_nats=True)


def _own_nats(data_dir: Path, found: FoundServer) -> str | None:
    """The address of the NATS of a stopped server whose data directory was named, while another server runs (FIND-4):
    data of one are not combined with the NATS of the other. None: the server runs, or has no NATS of its own."""
    from pyoco_server.embedded import reachable_host
    from pyoco_server.ports.deployment.machine import own_nats_of

    if data_dir.resolve() == Path(found.server.data_dir).resolve() or (own := own_nats_of(data_dir)) is None:
        return None
    return f"nats://{reachable_host(own.host)}:{own.port}"


def settle(*, nats_url: str | None = None, data_dir: str | None = None, **given: Any) -> Settled:
    """Like `settle_nats`, for commands that use the data directory.

    If the configured NATS URL is that of a local server, its data directory is used, too; but not if several local
    servers use this NATS, because none of them is preferred.
    """
    settled = settle_nats(nats_url=nats_url, data_dir=data_dir, **given)
    if settled.found is not None or not settled.has_nats or data_dir or "PYOCO_DATA_DIR" in os.environ:
        return settled
    found = None
    with contextlib.suppress(SeveralServers):
        found = find(NATS, known=settled.config.nats_url)
    if found is None:
        return settled
    say(found)
    return replace(settled, config=replace(settled.config, data_dir=found.server.data_dir), found=found)


def find_door(need: Need = FRAMES) -> Address | None:
    """Return the door of a local server, and print it on stderr. Raises SeveralServers, SettingError."""
    data_dir = os.environ.get("PYOCO_DATA_DIR")
    found = find_in(data_dir, need) if data_dir else find(need)
    if found is None:
        return None
    say(found)
    return Address.read(found.address)


def say(found: FoundServer | None) -> None:
    """Print on stderr which server was found; never on stdout (FIND-7)."""
    if found is not None and not is_quiet(os.environ):
        click.echo(found.line, err=True)
