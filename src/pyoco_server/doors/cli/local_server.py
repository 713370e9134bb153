"""What commands take from a server on this machine when nothing else says where things are (FIND-4, FIND-5)."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import Any

import click

from pyoco_server.config import NatsBackendConfig
from pyoco_server.discovery import FRAMES, NATS, Found, Need, find, is_quiet
from pyoco_server.errors import SeveralServers
from pyoco_server.frames.addresses import Address

__all__ = ["Settled", "find_door", "say", "settle", "settle_nats"]


@dataclass(frozen=True)
class Settled:
    """The settings that are in force, and the local server that some of them come from."""

    config: NatsBackendConfig
    found: Found | None
    #: Whether the address of NATS is known; if not, it is the built-in default.
    has_nats: bool


def settle_nats(*, nats_url: str | None = None, option: str = "--nats-url", **given: Any) -> Settled:
    """The settings: options, environment, dotenv file, a local server, defaults, in that order.

    Says in one line on stderr which server is used. `option` is how this command names the address of NATS.
    Raises SettingError, SeveralServers.
    """
    config = NatsBackendConfig.from_env(nats_url=nats_url, **given)  # reads the dotenv file, too
    if nats_url or "PYOCO_NATS_URL" in os.environ:
        return Settled(config, None, has_nats=True)
    known_dir = config.data_dir if given.get("data_dir") or "PYOCO_DATA_DIR" in os.environ else None
    found = find(Need("nats", option), data_dir=known_dir)
    if found is None:
        return Settled(config, None, has_nats=False)
    say(found)
    data_dir = known_dir or found.server.data_dir
    return Settled(replace(config, nats_url=found.server.nats_url, data_dir=data_dir), found, has_nats=True)


def settle(*, nats_url: str | None = None, data_dir: str | None = None, **given: Any) -> Settled:
    """As `settle_nats`, for commands that use the data directory: when somebody has named the address of a local
    server, its data directory is used, too. Not when several servers use this NATS: none of them is preferred."""
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
    """The door of a local server. Says so on stderr. Raises SeveralServers, SettingError."""
    found = find(need, data_dir=os.environ.get("PYOCO_DATA_DIR"))
    if found is None:
        return None
    say(found)
    return Address.read(found.address)


def say(found: Found | None) -> None:
    """FIND-7. stdout is never touched."""
    if found is not None and not is_quiet(os.environ):
        click.echo(found.line, err=True)
