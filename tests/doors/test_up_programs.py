"""What `pyoco-server up` tells its processes: which programs workers run, by which names a gateway is asked."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli import keeper
from pyoco_server.doors.cli.claims import claim_data_dir
from pyoco_server.doors.cli.plan import ProcessPlan, UpOptions
from pyoco_server.errors import UsageError
from pyoco_server.executors.program import SAMPLES
from pyoco_server.loops.supervisor import Part


def part_of(name: str, tmp_path: Path, **more: Any) -> Part:
    """One of what `up` starts."""
    plain: dict[str, Any] = dict.fromkeys(UpOptions.__dataclass_fields__)
    told = {"host": "127.0.0.1", "port": 0, "workers": 1, "keeper": False, "programs": True}
    plain |= dict.fromkeys(("with_nats_bootstrap", "with_examples", "wheel_sync"), False) | told | more
    data_dir = claim_data_dir(tmp_path)
    try:
        with socket.socket() as http:
            plan = ProcessPlan(UpOptions(**plain), NatsBackendConfig.from_env({**os.environ, "PYOCO_LOAD_DOTENV": "0"}))
            parts = plan.parts(data_dir, http, None, lambda: None)  # type: ignore[arg-type,return-value]
            (part,) = [each for each in parts if each.name == name]
            return part
    finally:
        data_dir.release()


def worker(tmp_path: Path, **more: Any) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment of the one worker."""
    part = part_of("worker-1", tmp_path, **more)
    return [str(word) for word in part.command()], dict(part.environment())


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXEC_DIR", "WORK_ROOT", "PYOCO_HTTP_HOSTS"):
        monkeypatch.delenv(name, raising=False)


def test_the_samples_are_offered_and_run_below_the_data_directory(tmp_path: Path) -> None:
    """GRID-192"""
    command, environment = worker(tmp_path)
    assert command[command.index("--exec-dir") + 1] == str(SAMPLES)
    assert environment["WORK_ROOT"] == str(tmp_path / "jobs")


def test_a_directory_of_ones_own_is_used_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-89, GRID-92"""
    monkeypatch.setenv("EXEC_DIR", "/opt/mine")
    monkeypatch.setenv("WORK_ROOT", "/var/jobs")
    command, environment = worker(tmp_path)
    assert "--exec-dir" not in command
    assert (environment["EXEC_DIR"], environment["WORK_ROOT"]) == ("/opt/mine", "/var/jobs")


def test_who_wants_none_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXEC_DIR", "/opt/mine")
    command, environment = worker(tmp_path, programs=False)
    assert "--exec-dir" not in command
    assert "EXEC_DIR" not in environment


def test_the_resolver_of_the_environment_is_used_before_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYOCO_FLOW_RESOLVER", "my_flows:resolve")
    command, _ = worker(tmp_path, with_examples=True)
    assert command[command.index("--flow-resolver") + 1] == "my_flows:resolve"
    command, _ = worker(tmp_path, with_examples=True, flow_resolver="others:resolve")
    assert command[command.index("--flow-resolver") + 1] == "others:resolve"


def test_workers_serve_an_app_instead_of_a_resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """APP-9"""
    monkeypatch.setenv("PYOCO_FLOW_RESOLVER", "my_flows:resolve")
    command, _ = worker(tmp_path, with_examples=True, app="my_flows:app")
    assert command[-1] == "my_flows:app"
    assert "--flow-resolver" not in command
    with pytest.raises(UsageError, match="not both"):
        worker(tmp_path, app="my_flows:app", flow_resolver="my_flows:resolve")


def test_a_keeper_that_gives_up_by_itself_is_not_killed_in_the_same_moment(tmp_path: Path) -> None:
    stop_seconds = part_of("keeper", tmp_path, keeper=True).stop_seconds
    assert stop_seconds is not None
    assert stop_seconds > keeper._STOP_SECONDS + 2


@pytest.mark.parametrize(
    ("host", "given", "told"),
    [
        ("127.0.0.1", None, "localhost"),
        ("127.0.0.1", "", "localhost"),
        ("::1", None, "localhost"),
        ("localhost", None, "localhost"),
        ("127.0.0.1", "runs.example", "runs.example"),
        ("127.0.0.1", "*", "*"),
        ("0.0.0.0", None, None),
        ("192.0.2.7", None, None),
    ],
)
def test_a_gateway_of_this_machine_alone_answers_to_no_name_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, given: str | None, told: str | None
) -> None:
    """A page whose name was made to lead to the loopback address is a foreign page."""
    if given is not None:
        monkeypatch.setenv("PYOCO_HTTP_HOSTS", given)
    assert part_of("gateway", tmp_path, host=host).environment().get("PYOCO_HTTP_HOSTS") == told
