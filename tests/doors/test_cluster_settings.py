"""`pyoco-server cluster demo` beside a deployment: nothing of that deployment's settings is used."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyoco_server import config
from pyoco_server.config import LogSettings, NatsBackendConfig, grid_from_env, priced_from_env, settings
from pyoco_server.doors.cli import cluster_demo
from pyoco_server.doors.cli.claims import claim_data_dir
from pyoco_server.doors.cli.cluster_plan import ClusterPlan
from pyoco_server.doors.cli.cluster_settings import _TAKEN, own_settings, set_aside
from pyoco_server.doors.cli.server import cli
from pyoco_server.doors.cli.serving import Serving
from pyoco_server.embedded.cluster import cluster_of

#: The settings of an operator.
PRODUCTION = {
    "PYOCO_LEDGER_URL": "postgresql://pyoco:word@db.example/pyoco",
    "PYOCO_BUDGET_URL": "redis://:word@budget.example",
    "PYOCO_NATS_URL": "tls://n1.example:4222",
    "PYOCO_NATS_USER": "gateway",
    "PYOCO_NATS_PASSWORD_FILE": "/etc/pyoco/secrets/gateway.password",
    "PYOCO_NATS_TLS_CA": "/etc/pyoco/tls/ca.crt",
    "PYOCO_HTTP_AUTH_MODE": "api_key",
    "PYOCO_AUTH_PEPPER": "a-long-random-text-of-somebody",
    "PYOCO_RESULTS_URL": "s3://results",
    "PYOCO_API_KEY": "pyoco_key",
    "PYOCO_DATA_DIR": "/var/lib/pyoco",
    "EXEC_DIR": "/opt/programs",
    "EXEC_AUTH": "api_key",
    "WORK_ROOT": "/var/jobs",
    "AWS_ENDPOINT_URL": "https://s3.example",
    "AWS_SECRET_ACCESS_KEY": "word",
}
#: What the demo sets itself.
SET = {"PYOCO_NATS_URL", "PYOCO_DATA_DIR", "WORK_ROOT", "PYOCO_AUTH_PEPPER"}


@pytest.fixture
def production(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mapping[str, str]:
    """Variables, and one more setting in the folder's dotenv file."""
    for name in own_settings(os.environ)[1]:  # of the user who runs the tests
        monkeypatch.delenv(name, raising=False)
    for name, value in {**PRODUCTION, "PYOCO_LOG_LEVEL": "ERROR"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYOCO_LOAD_DOTENV", raising=False)
    monkeypatch.delenv("PYOCO_ENV_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("PYOCO_PACK_QUEUE_URL=nats://elsewhere.example\n")
    return variables_now()


def variables_now() -> dict[str, str]:
    """But for the one that pytest changes all the time."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def test_no_process_of_the_demo_is_told_where_production_is(production: Mapping[str, str], tmp_path: Path) -> None:
    with set_aside(), socket.socket() as http:
        plan = ClusterPlan(NatsBackendConfig.from_env(data_dir=str(tmp_path)), 2, None)
        nodes = cluster_of(tmp_path, plan.config, 3)
        data_dir = claim_data_dir(tmp_path)
        try:
            parts = plan.cluster_parts(data_dir, nodes, [(http, Serving("127.0.0.1", 1))])
            given = {part.name: dict(part.environment()) for part in parts}
            commands = [str(word) for part in parts for word in part.command() if "worker" in part.name]
        finally:
            data_dir.release()
    assert len(given) == 7
    for name, variables in given.items():
        assert not set(variables.values()) & set(PRODUCTION.values()), name
        assert not variables.keys() & (PRODUCTION.keys() - SET), name
        assert "PYOCO_PACK_QUEUE_URL" not in variables, name
        assert variables["PYOCO_LOAD_DOTENV"] == "false"
        assert variables["PYOCO_LOG_LEVEL"] == "ERROR"
        assert variables["PATH"]
    assert "--exec-dir" in commands  # the story asks for a program of the samples


def test_what_the_demo_reads_itself_is_not_of_production_either(production: Mapping[str, str]) -> None:
    with set_aside():
        nats, (priced, aws), grid = NatsBackendConfig.from_env(), priced_from_env(), grid_from_env()
        assert LogSettings.from_env().log_level == "ERROR"
    assert (nats.nats_url, nats.nats_user, nats.nats_tls_ca) == ("nats://127.0.0.1:4222", "", "")
    assert (nats.http_auth_mode, grid.exec_auth) == ("none", "none")
    declared = {each.name: each.default for each in settings(type(priced))}
    for name in ("ledger_url", "budget_url", "pack_queue_url", "results_url"):
        assert getattr(priced, name) == declared[name]
    assert aws.endpoint_url is None
    assert variables_now() == production


def test_it_is_told_in_one_line_without_a_value(production: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def run(options: object, folder: Path) -> int:
        seen.extend(map(os.environ.get, ("PYOCO_LEDGER_URL", "PYOCO_LOAD_DOTENV")))
        return 0

    monkeypatch.setattr(cluster_demo, "_run", run)
    done = CliRunner().invoke(cli, ["cluster", "demo", "--once"])
    assert seen == [None, "false"]
    (line,) = done.stderr.splitlines()
    assert "settings; ignored: .env, AWS_ENDPOINT_URL, " in line
    assert line.endswith(f"and {len(PRODUCTION) + 1 - 5} more")
    assert not [value for value in PRODUCTION.values() if value in line]


def test_without_settings_of_ones_own_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = {"PATH": "/bin", "PYOCO_LOG_LEVEL": "INFO", "MY_OWN": "1"}
    assert own_settings(plain) == ({**plain, "PYOCO_LOAD_DOTENV": "false"}, ())
    (tmp_path / ".env").write_text("")
    assert own_settings(plain)[1] == (".env",)
    assert own_settings({**plain, "PYOCO_LOAD_DOTENV": "no"})[1] == ()
    assert own_settings({**plain, "PYOCO_ENV_FILE": "none"})[1] == ()


def test_of_all_settings_none_but_the_named_ones_are_taken_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new setting is not passed on until it was classified."""
    monkeypatch.chdir(tmp_path)
    known = {each.variable for kind in config._DECLARED for each in settings(kind) if each.has_variable}
    known |= config._ELSEWHERE.keys()
    assert known >= _TAKEN
    assert own_settings(dict.fromkeys(known, "x"))[0].keys() == _TAKEN | {"PYOCO_LOAD_DOTENV"}
