"""Connections to a PostgreSQL of a test: past its ledger, and through a relay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from sqlalchemy import make_url

from support.relays import Relay


@contextlib.contextmanager
def another(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another connection, in the middle of a transaction."""
    with contextlib.closing(psycopg.connect(url)) as connection:
        yield connection


def by_way_of(relay: Relay, url: str) -> str:
    host, _, port = relay.url.removeprefix("http://").partition(":")
    return make_url(url).set(host=host, port=int(port)).render_as_string(hide_password=False)
