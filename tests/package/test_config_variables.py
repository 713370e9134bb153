"""Variables as a whole: which are secret, misspelt, no longer used or for tests alone; and the settings of logging."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyoco_server.config import (
    LogSettings,
    NatsBackendConfig,
    grid_from_env,
    reference,
    secret_variables,
    settings,
    unknown_variables,
    unused_variables,
    variables_for_tests,
)
from pyoco_server.errors import SettingError

VARIABLES = [setting for setting in settings(NatsBackendConfig) if setting.has_variable]


def test_a_slip_of_the_pen_is_found_and_foreign_variables_are_left_alone() -> None:
    environ = {s.variable: s.example for s in VARIABLES} | {
        "PYOCO_CUTE": "1",
        "PYOCO_API_KEY": "x",
        "PYOCO_NATS_URI": "x",
        "PYOCO_DLQ_MAX_AGE_SECS": "1",
        "pyoco_default_tag": "x",
        "PYOCO_MY_TASKS_COLOUR": "red",
        "PATH": "/bin",
    }
    assert unknown_variables(environ) == {
        "PYOCO_NATS_URI": "PYOCO_NATS_URL",
        "PYOCO_DLQ_MAX_AGE_SECS": "PYOCO_DLQ_MAX_AGE_SEC",
        "pyoco_default_tag": "PYOCO_DEFAULT_TAG",
    }


def test_secrets_of_every_part_are_known_by_their_variables() -> None:
    assert secret_variables() == {
        "PYOCO_NATS_URL",
        "PYOCO_WHEEL_INDEX",
        "PYOCO_AUTH_PEPPER",
        "PYOCO_LEDGER_URL",
        "PYOCO_BUDGET_URL",
        "PYOCO_RESULTS_SECRET",
        "PYOCO_DECISION_URL",
        "PYOCO_DECISION_API_KEY",
        "PYOCO_SERVER_URL",
        "PYOCO_API_KEY",
        "EXEC_CLUSTER_SECRET",
    }


def test_log_settings_come_from_the_environment() -> None:
    """FLOW-513 to FLOW-516"""
    assert LogSettings.from_env({"PYOCO_LOAD_DOTENV": "0"}) == LogSettings(
        log_level="INFO", log_format="auto", log_utc=True, log_include_traceback=True
    )
    environ = {
        "PYOCO_LOAD_DOTENV": "0",
        "PYOCO_LOG_LEVEL": "debug",
        "PYOCO_LOG_FORMAT": "TEXT",
        "PYOCO_LOG_UTC": "no",
        "PYOCO_LOG_INCLUDE_TRACEBACK": "0",
    }
    read = LogSettings.from_env(environ)
    assert read == LogSettings(log_level="DEBUG", log_format="text", log_utc=False, log_include_traceback=False)
    assert read.problems == ()


def test_bad_log_settings_fall_back_and_are_remembered(tmp_path: Path) -> None:
    """FLOW-530"""
    (tmp_path / ".env").write_text("broken\n")
    read = LogSettings.from_env(
        {"PYOCO_ENV_FILE": str(tmp_path / ".env"), "PYOCO_LOG_LEVEL": "LOUD", "PYOCO_LOG_UTC": "perhaps"}
    )
    assert read == LogSettings()
    assert [next(word for word in ("line 1", "LOUD", "perhaps") if word in each) for each in read.problems] == [
        "line 1",
        "LOUD",
        "perhaps",
    ]


def test_the_reference_is_up_to_date() -> None:
    """Stale? python docs/generate.py"""
    page = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
    assert page.read_text(encoding="utf-8") == reference()
    assert all(f"| `{setting.variable}` |" in reference() for setting in VARIABLES)


def test_a_variable_of_an_earlier_release_stops_nothing() -> None:
    """FLOW-194 for PYOCO_WORKERS_KV_TTL_SEC, which is still read"""
    environ = {"PYOCO_LOAD_DOTENV": "0", "PYOCO_ABANDON_AFTER_SEC": "never", "PYOCO_WORKERS_KV_TTL_SEC": "30"}
    assert NatsBackendConfig.from_env(environ) == NatsBackendConfig(workers_kv_ttl_sec=30.0)
    assert set(unused_variables(environ)) == {"PYOCO_ABANDON_AFTER_SEC", "PYOCO_WORKERS_KV_TTL_SEC"}
    assert unknown_variables(environ) == {}
    assert NatsBackendConfig(wheel_max_bytes=10).unpacked_wheel_bytes_max == 80


@pytest.mark.parametrize("url", ["", "memory://x", "127.0.0.1:4222", "nats://localhost:1,tls://a:b@[::1]:2"])
def test_settings_without_a_variable_are_set_for_the_processes_of_a_test(url: str) -> None:
    environ = {"PYOCO_LOAD_DOTENV": "0", "PYOCO_TEST_SETTINGS": "abandon_after_sec=2, exec_idle_sec=3"}
    if url:
        environ["PYOCO_NATS_URL"] = url
    assert NatsBackendConfig.from_env(environ).abandon_after_sec == 2.0
    assert grid_from_env(environ).exec_idle_sec == 3.0
    assert variables_for_tests(environ) == ("PYOCO_TEST_SETTINGS",)


@pytest.mark.parametrize("url", ["nats://10.0.0.1:4222", "127.0.0.1,nats.example.org", "nats://127.0.0.1.example.org"])
def test_settings_of_tests_are_refused_beside_a_nats_elsewhere(url: str) -> None:
    environ = {"PYOCO_LOAD_DOTENV": "0", "PYOCO_TEST_SETTINGS": "exec_idle_sec=3", "PYOCO_NATS_URL": url}
    with pytest.raises(SettingError, match="PYOCO_TEST_SETTINGS is for tests"):
        grid_from_env(environ)


def test_settings_of_tests_are_checked_and_set_nothing_that_has_a_variable() -> None:
    with pytest.raises(SettingError, match="exec_idle_sec"):
        grid_from_env({"PYOCO_LOAD_DOTENV": "0", "PYOCO_TEST_SETTINGS": "exec_idle_sec=soon"})
    others = {"PYOCO_LOAD_DOTENV": "0", "PYOCO_TEST_SETTINGS": "exec_auth_follows=true,exec_default_cap=9"}
    assert grid_from_env(others) == grid_from_env({"PYOCO_LOAD_DOTENV": "0"})
