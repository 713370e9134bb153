"""What a user imports: the public names, and both clients against real servers."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

import pyoco_server
from pyoco_server import AsyncPyocoHttpClient, NatsBackendConfig, PyocoHttpClient, PyocoNatsClient
from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.core.run import Owner, beat, claim, conclude
from pyoco_server.errors import Refused, RunNotFound, Unavailable
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring.backend import open_backend
from support.gateways import environment, gateway_process, open_gateway
from support.servers import NatsServer, config_for, free_port
from support.stacks import until
from support.warm_processes import ran

FLOW_YAML = "flow:\n  graph: a >> b\n  defaults: {mode: バッチ}\n"


FILTERS = "status=None, flow=None, tag=None, limit=None, include=None, workflow_yaml_sha256=None"


#: Section 18 of the contract, the small NATS client, and what programs of apps need.
HOMES = {
    "App": "app.app",
    "AsyncPyocoHttpClient": "http_client",
    "AsyncRunHandle": "app.aio_handles",
    "LogLine": "app.lines",
    "NatsBackendConfig": "config",
    "NatsKvTraceBackend": "trace",
    "PyocoError": "errors",
    "PyocoHttpClient": "http_client",
    "PyocoNatsClient": "nats_client",
    "PyocoNatsWorker": "worker",
    "ResultUnavailable": "app.failures",
    "Retry": "app.retry",
    "RunCancelled": "app.failures",
    "RunFailed": "app.failures",
    "RunHandle": "app.handles",
    "RunSet": "app.run_set",
    "RunTimeout": "app.failures",
    "SeveralServers": "errors",
    "as_completed": "app.run_set",
    "compact_run_snapshot": "snapshots",
    "configure_logging": "logging_config",
    "create_app": "http_api",
    "ends": "executors.flow.building",
    "ensure_resources": "wiring.backend",
    "gather": "app.run_set",
    "task": "executors.flow.own_tasks",
}


class TestPublicNames:
    def test_the_list_of_names_is_what_is_there(self) -> None:
        assert set(pyoco_server.__all__) == set(HOMES)
        assert sorted(pyoco_server.__all__) == pyoco_server.__all__
        assert dir(pyoco_server) == pyoco_server.__all__, "APP-1"

    @pytest.mark.parametrize(("name", "home"), HOMES.items())
    def test_a_name_is_the_one_of_its_module(self, name: str, home: str) -> None:
        """Section 18: the names are also importable from the package itself"""
        module = importlib.import_module(f"pyoco_server.{home}")
        assert getattr(pyoco_server, name) is getattr(module, name)
        assert getattr(pyoco_server, name).__doc__

    def test_another_name_is_not_there(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
            _ = pyoco_server.Nonsense
        with pytest.raises(ImportError):
            exec("from pyoco_server import Nonsense")

    #: In one process after each other: what one has brought, the next may have.
    IMPORTS = (
        (
            ("import pyoco_server", "fastapi starlette uvicorn nats httpx msgspec yaml pyoco click asyncio"),
            ("from pyoco_server import PyocoHttpClient", "fastapi starlette uvicorn nats pyoco msgspec yaml asyncio"),
            ("from pyoco_server import AsyncPyocoHttpClient", "fastapi starlette uvicorn nats pyoco msgspec yaml"),
        ),
        (
            ("from pyoco_server import NatsBackendConfig", "fastapi starlette uvicorn nats httpx pyoco"),
            ("from pyoco_server import App, ends, task; App('a')", "fastapi starlette uvicorn nats httpx"),
            ("from pyoco_server import PyocoNatsClient", "fastapi starlette uvicorn"),
            ("from pyoco_server import PyocoNatsWorker", "fastapi starlette uvicorn"),
        ),
    )

    @pytest.mark.parametrize("imports", IMPORTS, ids=["http", "nats"])
    def test_an_import_costs_no_more_than_it_must(self, imports: tuple[tuple[str, str], ...]) -> None:
        program = "import sys\n" + "".join(
            f"{statement}\nprint([name for name in {banned.split()} if name in sys.modules])\n"
            for statement, banned in imports
        )
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
        brought = dict(zip([statement for statement, _ in imports], ended.stdout.splitlines(), strict=True))
        assert brought == dict.fromkeys(brought, "[]")

    def test_a_star_import_brings_the_list(self) -> None:
        found: dict[str, object] = {}
        exec("from pyoco_server import *", found)
        assert set(found) - {"__builtins__"} == set(pyoco_server.__all__)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsBackendConfig]:
    """A server of this module's own, under the default names: a process cannot be told another work stream."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield NatsBackendConfig(
        nats_url=server.url, data_dir=str(tmp_path_factory.mktemp("data")), max_run_snapshot_bytes=20_000
    )
    server.kill()


@pytest.fixture(scope="module")
def url(config: NatsBackendConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway in a process of its own, as a user starts it (FLOW-390)."""
    port = free_port()
    log = tmp_path_factory.mktemp("log") / "gateway.log"
    with gateway_process(config, port, log) as url:
        until(lambda: _answers(url), what="the gateway")
        yield url


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=20).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def client(url: str) -> Iterator[PyocoHttpClient]:
    with PyocoHttpClient(url) as client:
        yield client


async def end(config: NatsBackendConfig, run_id: str) -> None:
    """What a worker does: take the run and end it."""
    async with open_backend(config, "tests") as backend:
        found = await backend.runs.find(run_id)
        assert isinstance(found, Stored)
        run = found.run
        if run.status == "PENDING":
            run = claim(run, Owner("anna", "instance-1"), "attempt-1", time.time())
        await backend.runs.replace(conclude(run, Completed(), time.time()), found.revision)


def out_of_time(wait: Callable[[float], object], state: str) -> None:
    """It says in which state the run still is, if there was time to hear of that."""
    for seconds in (0.2, 2.0, 20.0):
        with pytest.raises(TimeoutError) as raised:
            wait(seconds)
        if state in str(raised.value):
            return
    raise AssertionError(raised.value)


def problem_of(raised: pytest.ExceptionInfo[httpx.HTTPStatusError]) -> tuple[int, str]:
    response = raised.value.response
    return response.status_code, response.json()["err_id"]


class TestPyocoHttpClient:
    @pytest.mark.parametrize("kind", [PyocoHttpClient, AsyncPyocoHttpClient])
    @pytest.mark.parametrize(
        ("method", "signature"),
        [
            ("__init__", "(base_url=None, api_key=None, api_key_header='X-API-Key', timeout=30.0)"),
            ("submit_run", "(flow_name, params=None, tag=None, tags=None)"),
            ("submit_run_yaml", "(workflow_yaml, tag, flow_name='main')"),
            ("cancel_run", "(run_id, wait=False, timeout_sec=None)"),
            ("list_wheels", "()"),
            ("list_wheel_history", "(limit=None, wheel_name=None, action=None)"),
            ("upload_wheel", "(filename, data, replace=True, tags=None)"),
            ("delete_wheel", "(wheel_name)"),
            ("get_run", "(run_id, include=None)"),
            ("get_tasks", "(run_id)"),
            ("list_runs", f"({FILTERS})"),
            ("list_runs_vnext", f"({FILTERS}, updated_after=None, cursor=None)"),
            ("watch_run", "(run_id, include=None, since=None, timeout_sec=None)"),
            ("list_workers", "(scope=None, state=None, include_hidden=None, limit=None)"),
            ("patch_worker", "(worker_id, hidden)"),
            ("health", "()"),
            ("get_metrics", "()"),
            ("get_wheel", "(wheel_name)"),
            ("close", "()"),
        ],
    )
    def test_a_method_takes_what_the_contract_says(self, kind: type, method: str, signature: str) -> None:
        """FLOW-401 to FLOW-414: what we added can only be given by name"""
        found = inspect.signature(getattr(kind, method))
        bare = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()][1:]
        agreed = [each for each in bare if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        assert str(inspect.Signature(agreed)) == signature
        by_name = [each for each in bare if each not in agreed and each.kind is not inspect.Parameter.VAR_KEYWORD]
        assert all(each.default is not inspect.Parameter.empty for each in by_name)

    def test_health(self, client: PyocoHttpClient) -> None:
        """FLOW-414"""
        assert client.health() == {"status": "ok"}

    def test_a_run_is_submitted_and_read(self, client: PyocoHttpClient) -> None:
        """FLOW-401, FLOW-408, FLOW-409"""
        accepted = client.submit_run("hello", params={"name": "あなた"}, tag="gpu", tags=["x", "y"])
        assert accepted == {"run_id": accepted["run_id"], "status": "PENDING"}
        run = client.get_run(accepted["run_id"])
        assert (run["flow_name"], run["params"], run["tag"]) == ("hello", {"name": "あなた"}, "gpu")
        assert run["tags"] == ["x", "y"]
        assert "task_records" not in run
        assert client.get_run(accepted["run_id"], include=["records"])["task_records"] == {}
        assert client.get_tasks(accepted["run_id"])["tasks"] == {}

    def test_what_is_not_given_is_not_sent(self, client: PyocoHttpClient) -> None:
        """FLOW-401: the server's defaults hold"""
        run = client.get_run(client.submit_run("hello")["run_id"])
        assert (run["params"], run["tag"], run["tags"]) == ({}, "default", ["default"])
        assert client.get_run(client.submit_run("hello", tags=())["run_id"])["tags"] == []

    def test_a_flow_is_uploaded(self, client: PyocoHttpClient) -> None:
        """FLOW-402"""
        run = client.get_run(client.submit_run_yaml(FLOW_YAML, "gpu")["run_id"])
        assert (run["flow_name"], run["tag"], run["params"]) == ("main", "gpu", {"mode": "バッチ"})
        named = client.get_run(client.submit_run_yaml(FLOW_YAML, "gpu", flow_name="mine")["run_id"])
        assert named["flow_name"] == "mine"

    def test_runs_are_listed(self, client: PyocoHttpClient) -> None:
        """FLOW-410"""
        flow = f"listed-{uuid.uuid4()}"
        ids = [client.submit_run(flow, tag=tag)["run_id"] for tag in ("a", "b", "b")]
        assert [run["run_id"] for run in client.list_runs(flow=flow)] == ids[::-1]
        assert [run["run_id"] for run in client.list_runs(flow=flow, tag="b", limit=1)] == ids[2:]
        assert client.list_runs(flow=flow, status="COMPLETED") == []
        assert client.list_runs(flow=flow, workflow_yaml_sha256="0" * 64) == []
        assert client.list_runs(flow=flow, include=["full"])[0]["params"] == {}

    def test_a_run_is_cancelled(self, client: PyocoHttpClient) -> None:
        """FLOW-403"""
        asked = client.cancel_run(client.submit_run("hello")["run_id"])
        assert asked["status"] == "CANCELLING"
        assert asked["cancel_requested_at"] > 0

    def test_a_cancelled_run_is_waited_for(self, client: PyocoHttpClient, config: NatsBackendConfig) -> None:
        """FLOW-416"""
        run_id = client.submit_run("hello")["run_id"]
        out_of_time(lambda seconds: client.cancel_run(run_id, wait=True, timeout_sec=seconds), "CANCELLING")
        asyncio.run(end(config, run_id))
        ended = client.cancel_run(run_id, wait=True, timeout_sec=100)
        assert (ended["status"], ended["run_id"]) == ("CANCELLED", run_id)

    def test_a_run_is_waited_for(self, client: PyocoHttpClient, config: NatsBackendConfig) -> None:
        run_id = client.submit_run("hello")["run_id"]
        out_of_time(lambda seconds: client.wait_run(run_id, seconds), "PENDING")
        asyncio.run(end(config, run_id))
        assert client.wait_run(run_id)["status"] == "COMPLETED"

    def test_errors_keep_their_body(self, client: PyocoHttpClient) -> None:
        """FLOW-401 to FLOW-403, FLOW-408 to FLOW-410, FLOW-415"""
        nobody = str(uuid.uuid4())
        table: list[tuple[Callable[[], object], int, str]] = [
            (lambda: client.submit_run(""), 422, "ERR-PYOCO-0002"),
            (lambda: client.submit_run("f", params={"x": "x" * 30_000}), 422, "ERR-PYOCO-0002"),
            (lambda: client.submit_run("f", tag="a.b"), 422, "ERR-PYOCO-0002"),
            (lambda: client.submit_run_yaml("flows: {}", "gpu"), 422, "ERR-PYOCO-0002"),
            (lambda: client.submit_run_yaml("#" * 300_000, "gpu"), 413, "ERR-PYOCO-0016"),
            (lambda: client.get_run(nobody), 404, "ERR-PYOCO-0005"),
            (lambda: client.get_tasks(nobody), 404, "ERR-PYOCO-0005"),
            (lambda: client.cancel_run(nobody), 404, "ERR-PYOCO-0005"),
            (lambda: client.cancel_run(nobody, wait=True), 404, "ERR-PYOCO-0005"),
            (lambda: client.wait_run(nobody), 404, "ERR-PYOCO-0005"),
            (lambda: client.list_runs(limit=0), 422, "ERR-PYOCO-0017"),
            (lambda: client.list_runs(status="DONE"), 422, "ERR-PYOCO-0017"),
        ]
        for call, status, err_id in table:
            with pytest.raises(httpx.HTTPStatusError) as raised:
                call()
            assert problem_of(raised) == (status, err_id)

    @pytest.mark.parametrize("run_id", ["../health", "..", "x?include=full", "a/b", "a#b", "a%2fb", "日本"])
    def test_an_odd_id_stays_an_id(self, client: PyocoHttpClient, run_id: str) -> None:
        """FLOW-36: it reaches no other path"""
        for call, end in ((client.get_run, ""), (client.get_tasks, "/tasks"), (client.cancel_run, "/cancel")):
            with pytest.raises(httpx.HTTPStatusError) as raised:
                call(run_id)
            assert raised.value.response.status_code == 404
            assert raised.value.request.url.path == f"/runs/{run_id}{end}"

    def test_an_unreachable_server_is_a_transport_error(self, unused_port: int) -> None:
        """FLOW-64"""
        with PyocoHttpClient(f"http://127.0.0.1:{unused_port}") as client, pytest.raises(httpx.ConnectError):
            client.health()

    def test_a_closed_client_is_closed(self, url: str) -> None:
        """FLOW-414"""
        client = PyocoHttpClient(url)
        client.close()
        client.close()
        with pytest.raises(RuntimeError):
            client.health()


class TestPyocoNatsClient:
    @pytest.fixture
    async def nats_client(self, config: NatsBackendConfig) -> AsyncIterator[PyocoNatsClient]:
        client = await PyocoNatsClient.connect(config)
        yield client
        await client.close()

    async def test_a_run_is_submitted_and_read(self, nats_client: PyocoNatsClient, config: NatsBackendConfig) -> None:
        run_id = await nats_client.submit_run("hello", {"name": "あなた"}, tag="gpu", tags=["x"])
        run = await nats_client.get_run(run_id)
        assert (run["run_id"], run["status"], run["params"]) == (run_id, "PENDING", {"name": "あなた"})
        assert (run["tag"], run["tags"], run["task_records"]) == ("gpu", ["x"], {})
        async with open_gateway(config) as gateway:
            seen = (await gateway.client.get(f"/runs/{run_id}?include=full")).json()
        told_by_the_gateway_alone = {name: seen[name] for name in seen.keys() & {"last_change", "waiting"}}
        assert seen == run | told_by_the_gateway_alone

    async def test_a_graph_is_shown_as_http_shows_it(
        self, nats_client: PyocoNatsClient, config: NatsBackendConfig
    ) -> None:
        run_id = await nats_client.submit_run("hello")
        runs = nats_client._backend.runs
        found = await runs.find(run_id)
        assert isinstance(found, Stored)
        graph = {"a": ["b"], "b": []}
        await runs.replace(beat(found.run, Progress(graph={"a": ("b",), "b": ()}), 5.0), found.revision)
        async with open_gateway(config) as gateway:
            seen = (await gateway.client.get(f"/runs/{run_id}")).json()
        assert seen["graph"] == (await nats_client.get_run(run_id))["graph"] == graph

    async def test_the_tag_has_a_default(self, nats_client: PyocoNatsClient) -> None:
        """FLOW-35"""
        run = await nats_client.get_run(await nats_client.submit_run("hello"))
        assert (run["tag"], run["tags"], run["params"]) == ("default", ["default"], {})

    @pytest.mark.parametrize(("flow_name", "tag"), [("", "gpu"), ("f", ""), ("f", "a.b"), ("f", "a b"), ("f", "*")])
    async def test_a_bad_name_is_a_value_error(self, nats_client: PyocoNatsClient, flow_name: str, tag: str) -> None:
        """FLOW-32, FLOW-37"""
        with pytest.raises(ValueError, match="must not"):
            await nats_client.submit_run(flow_name, tag=tag)

    async def test_a_run_too_large_is_refused(self, nats_client: PyocoNatsClient) -> None:
        """FLOW-71"""
        with pytest.raises(Refused):
            await nats_client.submit_run("hello", {"x": "x" * 30_000})

    @pytest.mark.parametrize("run_id", [str(uuid.UUID(int=7)), "", "x", "*", "a.b", ">"])
    async def test_an_unknown_run_is_not_found(self, nats_client: PyocoNatsClient, run_id: str) -> None:
        """FLOW-36"""
        with pytest.raises(RunNotFound):
            await nats_client.get_run(run_id)

    async def test_closing_twice_is_harmless(self, config: NatsBackendConfig) -> None:
        client = await PyocoNatsClient.connect(config)
        await client.close()
        await client.close()

    @pytest.mark.usefixtures("hasty_links")
    async def test_without_nats_it_does_not_connect(self, unused_port: int) -> None:
        """FLOW-286"""
        with pytest.raises(Unavailable) as raised:
            await PyocoNatsClient.connect(config_for(f"nats://127.0.0.1:{unused_port}"))
        assert raised.value.text.err_id == "ERR-PYOCO-0003"

    def test_the_environment_says_where(self, config: NatsBackendConfig, tmp_path: Path) -> None:
        """FLOW-387"""
        program = (
            "import asyncio, json, pyoco_server\n"
            "async def main():\n"
            "    client = await pyoco_server.PyocoNatsClient.connect()\n"
            "    print(json.dumps(await client.get_run(await client.submit_run('hello'))))\n"
            "    await client.close()\n"
            "asyncio.run(main())\n"
        )
        ended = ran([sys.executable, "-c", program], env=environment(config), timeout=100, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["flow_name"] == "hello"
