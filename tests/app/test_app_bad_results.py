"""Results that cannot be had: each says why, with the server's error id."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator

import pytest

from pyoco_server import App, ResultUnavailable, RunHandle, task
from pyoco_server.app.clients import Clients
from pyoco_server.app.failures import RequestFailed
from pyoco_server.app.submitting import Submitter
from pyoco_server.core.api_key import make_key
from pyoco_server.core.values.kept import object_name
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.runs.port import Stored
from support.memory_nats import new_memory_url
from support.sites import Site, open_site

SECONDS = 100.0
app = App("spoiled")


class Opaque:
    """Nothing encodes it."""


@task
def hide() -> dict[str, list[object]]:
    return {"found": [1, Opaque()]}


@task
def repeat(text: str) -> bytes:
    return text.encode() * 100_000


@app.flow
def opaque() -> object:
    return hide


@app.flow
def large(text: str) -> bytes:
    return repeat(text)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Authentication is on."""
    folder = tmp_path_factory.mktemp("site")
    with open_site(new_memory_url(), folder, resolve=app.resolve, http_auth_mode="api_key") as site:
        yield site


@contextlib.contextmanager
def as_tenant(site: Site, tenant: str) -> Iterator[None]:
    """The app has a key of this tenant."""
    plain, record = make_key(tenant, "", time.time(), secrets.token_hex, secrets.token_urlsafe)
    assert site.stores(lambda backend: backend.keys.add(record))
    clients = Clients(site.url, plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "submitter", Submitter(app, clients))
        yield
    clients.close()


@pytest.fixture
def own(site: Site) -> Iterator[Site]:
    site.wake()
    with as_tenant(site, "acme"):
        yield site
    site.rest()


def ended(text: str) -> RunHandle[bytes]:
    run = large.submit(text)
    assert run.wait(SECONDS)["status"] == "COMPLETED"
    return run


def test_a_value_that_nothing_encodes_is_named(own: Site) -> None:
    """APP-8, RES-14: its run has completed, and each question has the same answer."""
    run = opaque.submit()
    for _ in range(2):
        with pytest.raises(ResultUnavailable, match=r"Opaque") as raised:
            run.result(SECONDS)
        assert raised.value.err_id == "ERR-PYOCO-0054"
        assert "found" in str(raised.value)
    assert run.status == "COMPLETED"


def test_a_stored_value_may_be_asked_for_by_several_and_again(own: Site) -> None:
    """APP-8, RES-15"""
    run = ended("ab")
    value = run.result()
    assert value == b"ab" * 100_000
    assert run.result() is value
    assert app.run(run.id).result() == value


def test_another_tenant_s_run_is_unknown(own: Site) -> None:
    """RES-13"""
    run = ended("a")
    with as_tenant(own, "other"):
        other = app.run(run.id)
        for ask in (other.result, other.snapshot, other.cancel):
            with pytest.raises(RequestFailed, match="ERR-PYOCO-0005") as raised:
                ask()
            assert raised.value.status_code == 404
    assert run.result() == b"a" * 100_000


def test_a_lost_object_is_gone(own: Site) -> None:
    """RES-12: the same if the value is past its retention while its run is kept."""
    run = ended("a")
    name = object_name(run.id, run.snapshot()["attempt_id"], 0)
    assert own.stores(lambda backend: backend.outputs.delete(name))
    with pytest.raises(ResultUnavailable) as raised:
        run.result()
    assert raised.value.err_id == "ERR-PYOCO-0056"


def test_a_run_past_its_retention_is_unknown(own: Site) -> None:
    """RES-13"""
    run = ended("a")

    async def removed(backend: GatewayBackend) -> bool:
        found = await backend.runs.find(run.id)
        assert isinstance(found, Stored)
        return await backend.runs.withdraw(run.id, found.revision)

    assert own.stores(removed)
    with pytest.raises(RequestFailed, match="ERR-PYOCO-0005"):
        run.result()
