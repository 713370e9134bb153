"""`pyoco-client` with a real gateway and worker, for tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from support.client_commands import Client
from support.sites import Site

__all__ = ["client", "own_tag"]


@pytest.fixture
def client(site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("PYOCO_SERVER_URL", site.url)
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    yield Client(capsys, monkeypatch)
    site.rest()  # before pytest closes what the command wrote to


@pytest.fixture
def own_tag() -> str:
    """A tag without workers: its runs stay PENDING."""
    return f"t{uuid.uuid4().hex[:12]}"
