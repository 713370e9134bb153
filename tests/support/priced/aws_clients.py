"""Clients of the emulator, as our own code makes them."""

from __future__ import annotations

from functools import cache

import pytest
from aiobotocore.session import AioSession, get_session

from pyoco_server.config import AwsSettings
from pyoco_server.ports.aws import client
from support.priced.servers import Aws

__all__ = ["settings_of"]


@cache
def _session() -> AioSession:
    """One for all tests: it reads what it knows of each service only once, which takes a tenth of a second."""
    return get_session()


def settings_of(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> AwsSettings:
    """With them, and the keys that the SDK finds, a client of this test's own is made in a few milliseconds."""
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "get_session", _session)
    return AwsSettings.read(aws.environment)
