"""Fixtures that many tests need: a real NATS server, a link to it, and unique names."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from pyoco_server import logs
from pyoco_server.config import NatsBackendConfig
from pyoco_server.executors.wheels import pip
from pyoco_server.logs import outages
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, open_link
from pyoco_server.ports.nats.resources import resources_of
from support import warm_processes
from support.collection import import_share, without_garbage_collector
from support.order import shared_out
from support.priced.servers import Aws, MotoServer, PostgresServer, ValkeyServer
from support.servers import NatsServer, config_for, forget, quick_folder
from support.thorough import is_thorough
from support.warm_processes import WarmProcess, started

# A shell starts background jobs with SIGINT ignored, and they would pass that on to the processes of tests. What has a
# handler is reset to the default in a new process.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Most gateways of most tests need no ledger, and to make one takes longer than many a test. Tests of priced runs bring
# theirs; processes that tests start have one, as a user's have.
os.environ.setdefault("PYOCO_PRICED_ENABLED", "0")

# Servers of this machine and of other tests must not be found. Tests of discovery turn it on, with a state directory of
# their own (`support.discovery`). Helpers that remove our variables keep this one (`support.surroundings`); a process
# that does not have it leaves nothing in the developer's home.
os.environ["PYOCO_DISCOVERY"] = "0"
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="pyoco-test-state-")

# NATS sets the queue's limit aside, and on a small machine that would leave nothing for the streams of a test.
os.environ.setdefault("EXEC_QUEUE_MAX_BYTES", str(64 * 2**20))
os.environ.setdefault("PYOCO_LOGS_MAX_BYTES", str(64 * 2**20))

# What was compiled once is kept, also where the environment says otherwise: tests start hundreds of processes of ours,
# and a quarter of a gateway's start would be the compiler's.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_PROFILE = os.environ.get("PYOCO_TEST_PROFILE", "suite")

# A deadline for one example would depend on the load of the machine. `make thorough` runs every property test with all
# of its examples; the suite runs the same ones each time, and fewer.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True, database=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=200, print_blob=True)
hypothesis.settings.load_profile(_PROFILE)
if _PROFILE == "suite":
    # Hypothesis also draws constants from the source of every local module that is imported by then. With them, the
    # examples of a test depend on which other tests were collected, and each test process reads all modules again.
    providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    with without_garbage_collector():
        import_share(session.config)
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    for item in items:
        if is_thorough(item.nodeid):
            item.add_marker("thorough")
    yield  # pytest applies `-m`
    if processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = shared_out(items, processes)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Twelve thousand tests are most of a million objects, and stay. The collector need not look at them again and
    again: that is half a second each time."""
    gc.collect()
    gc.freeze()
    # A full collection visits what tests import later and keep, a tenth of a second each time.
    gc.set_threshold(*gc.get_threshold()[:2], 50)
    if not session.config.option.collectonly and {"support.chaos", "support.grid.processes"} & sys.modules.keys():
        warm_processes.prepare()  # somebody will ask, and must not wait


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.fixture
def cold_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For who looks at the memory of a process, at its variables from outside, or at how a command starts."""
    monkeypatch.setattr(warm_processes, "is_cold", True)


@pytest.fixture(autouse=True)
def no_open_outages() -> Iterator[None]:
    """A warning that one test has caused must not keep that of another from the log."""
    with pytest.MonkeyPatch.context() as patch:  # `monkeypatch` itself must be undone before other fixtures end
        patch.setattr(outages, "_open", {})
        yield


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that is called in this process sends its log to a stream; the tests after it must not see that."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [each for each in root.handlers if each not in handlers and type(each).__module__ == logs.__name__]:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """One server per test process, shared. Who wants to kill one uses `own_nats_server`."""
    with quick_folder() as folder:
        server = NatsServer(folder)
        server.start()
        yield server
        server.kill()


@pytest.fixture(scope="session")
def nats_url(nats_server: NatsServer) -> str:
    return nats_server.url


@pytest.fixture
def own_nats_server() -> Iterator[NatsServer]:
    """A server of this test's own, to be killed and restarted at will."""
    with quick_folder() as folder:
        server = NatsServer(folder)
        server.start()
        yield server
        server.kill()


@pytest.fixture
async def link(nats_url: str) -> AsyncIterator[Link]:
    link = await open_link(nats_url, "tests")
    yield link
    await link.close()


@pytest.fixture
def hasty_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection attempt that gets no answer is given up after one second instead of five."""
    monkeypatch.setattr(open_link, "__defaults__", (None, 1.0))


@pytest.fixture
async def config(link: Link, nats_url: str) -> AsyncIterator[NatsBackendConfig]:
    """Settings of this test's own; whatever was made under these names is deleted afterwards."""
    config = config_for(nats_url)
    yield config
    await forget(link, config)


@pytest.fixture
async def prepared(link: Link, config: NatsBackendConfig) -> NatsBackendConfig:
    """The same settings, with their streams and buckets made."""
    await ensure(link, resources_of(config))
    return config


@pytest.fixture
def cold_pip() -> None:
    """For who looks for pip among the children of this process, or has limits that those inherit."""


@pytest.fixture
def warm_pip(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers run the real pip, in a process that has imported it already, unless a test uses `cold_pip`."""

    async def spawn(command: list[str], environment: Mapping[str, str], place: Path) -> WarmProcess:
        assert command[:4] == [sys.executable, "-P", "-m", "pip"]
        pipe, same = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        return await started(command[2:], env=environment, cwd=place, stdout=pipe, stderr=same)

    with pytest.MonkeyPatch.context() as patch:
        if "cold_pip" not in request.fixturenames:
            patch.setattr(pip, "_spawn", spawn)
        yield


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port without a listener. It is reserved, so that the system gives it to no other server; a server that binds to
    it explicitly, with SO_REUSEADDR, still gets it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One per test process, shared. `new_database(prepare)` copies a prepared database."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database of this test's own."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def own_postgres_server() -> Iterator[PostgresServer]:
    """A server of this test's own, to be killed and restarted at will."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """One per test process, shared; `redis_url` empties it."""
    server = ValkeyServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def redis_url(redis_server: ValkeyServer) -> str:
    """A Redis without a key or a script in it."""
    redis_server.empty()
    return redis_server.url


@pytest.fixture
def own_redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """A server of this test's own, to be killed and restarted at will: it is then empty."""
    server = ValkeyServer(tmp_path_factory.mktemp("own_redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """One per test process, shared; `aws` empties it."""
    server = MotoServer(tmp_path_factory.mktemp("moto"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def aws(moto_server: MotoServer) -> Aws:
    """S3 and SQS without a bucket or a queue in them."""
    return moto_server.empty()
