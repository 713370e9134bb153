"""`pyoco-server cluster demo`, as a user starts it."""

from __future__ import annotations

import re
import signal
import socket
import tempfile
from pathlib import Path

import httpx
import pytest

from pyoco_server import embedded
from pyoco_server.discovery.server_file import is_running, read
from pyoco_server.doors.cli.server import cli
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.http_client import PyocoHttpClient
from support.clusters import DemoCluster, demo_command, demo_environment
from support.left_behind import standing_in
from support.stacks import until
from support.warm_processes import ran

_SECONDS = 540
#: Of a deployment that is none of the demo's business: with any of them it would not start, or not get on.
_ELSEWHERE = {
    "PYOCO_NATS_URL": "tls://n1.example:4222",
    "PYOCO_NATS_USER": "gateway",
    "PYOCO_NATS_TLS_CA": "/etc/pyoco/tls/ca.crt",
    "PYOCO_HTTP_AUTH_MODE": "api_key",
    "EXEC_DIR": "/opt/programs",
}


@pytest.mark.timeout(600)  # a busy machine needs minutes for it
def test_the_story_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    """GRID-180, GRID-181, FLOW-308: from nothing to a killed leader and back, from one command, also in a shell that is
    set up for a deployment elsewhere"""
    command = [word for word in demo_command(tmp_path, "--once") if word not in ("--data-dir", str(tmp_path))]
    settings = demo_environment(TMPDIR=str(tmp_path), **_ELSEWHERE)
    shown = ran(command, timeout=_SECONDS, cwd=tmp_path, env=settings)
    print(shown.stdout, shown.stderr)
    assert shown.returncode == 0
    assert "stores and settings; ignored: " in shown.stderr
    assert "12 COMPLETED" in shown.stdout
    killed = re.search(r"kill -9 \d+: (nats-\d), which leads the queue", shown.stdout)
    leads = re.search(r"(nats-\d) leads the queue after [\d.]+ s", shown.stdout)
    assert killed is not None
    assert leads is not None
    assert killed[1] != leads[1]
    assert f"{killed[1]} is up again and has caught up after" in shown.stdout
    assert "all runs were completed, each once" in shown.stdout
    assert list(tmp_path.iterdir()) == []
    until(lambda: not standing_in(tmp_path), 10, "everybody's end")


@pytest.mark.timeout(600)  # the same
def test_it_is_started_again_on_the_same_data(demo_cluster: DemoCluster) -> None:
    """FLOW-425, FLOW-468: Ctrl-C ends everything; what was stored is there the next time. FIND-1: the discovery file is
    there as long as the demo runs."""
    with PyocoHttpClient(demo_cluster.addresses[0]) as client:
        params = {"path": str(demo_cluster.folder / "note"), "token": "before"}
        run_id = client.submit_run("trace", params, idempotency_key="before")["run_id"]
        assert client.wait_run(run_id, 200)["status"] == "COMPLETED"
    found = read(demo_cluster.data_dir / "server.json")
    assert found is not None
    assert is_running(found)
    assert (found.command, list(found.http)) == ("cluster demo", demo_cluster.addresses)
    assert found.nats_url == demo_cluster.nats_url
    assert [read(path) for path in demo_cluster.state.rglob("*.json")] == [found]
    assert demo_cluster.stop(signal.SIGINT) == 130
    assert [*demo_cluster.state.rglob("*.json"), *demo_cluster.data_dir.glob("server.json")] == []
    until(lambda: not standing_in(demo_cluster.data_dir), 10, "everybody's end")
    demo_cluster.start()
    with PyocoHttpClient(demo_cluster.addresses[1]) as client:
        assert client.get_run(run_id)["status"] == "COMPLETED"
        assert client.submit_run("trace", params, idempotency_key="before")["run_id"] == run_id
    assert httpx.get(f"{demo_cluster.addresses[0]}/ready", timeout=60).status_code == 200


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert outcome(cli, "pyoco-server", ["cluster", "demo", *options]) == 1
    return capsys.readouterr().err


def test_what_cannot_work_is_told_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-426: each with its remedy"""
    data = ["--data-dir", str(tmp_path / "d"), "--port", "0"]
    assert "--nodes" in refusal(capsys, *data, "--nodes", "2")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is already in use" in refusal(capsys, *data[:2], "--port", str(port))
    (tmp_path / "d" / "nats-1" / "store").mkdir(parents=True)
    assert "a cluster of 1 nodes" in refusal(capsys, *data)
    (tmp_path / "up" / "nats").mkdir(parents=True)
    assert "belongs to `pyoco-server up`" in refusal(capsys, "--data-dir", str(tmp_path / "up"), "--port", "0")
    monkeypatch.setattr(embedded, "find_command", lambda name: None)
    assert "there is no nats-server" in refusal(capsys, "--data-dir", str(tmp_path / "none"), "--port", "0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert "there is no nats-server" in refusal(capsys, "--once", "--port", "0")
    assert list((tmp_path / "temporary").iterdir()) == []
    assert standing_in(tmp_path) == []
