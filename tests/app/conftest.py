"""A gateway and a worker of the sample app, in a thread beside the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyoco_server.app.clients import Clients
from pyoco_server.app.submitting import Submitter
from support.app_flows import app
from support.memory_nats import new_memory_url
from support.sites import Site, open_site


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(new_memory_url(), tmp_path_factory.mktemp("site"), resolve=app.resolve) as site:
        yield site


@pytest.fixture
def site(shared_site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The app finds this server."""
    clients = Clients(shared_site.url, None)
    monkeypatch.setattr(app, "_clients", clients)
    monkeypatch.setattr(app, "submitter", Submitter(app, clients))
    shared_site.wake()
    yield shared_site
    shared_site.rest()
    app.close()
