"""Settings: read once, checked always, and never silently replaced by a default (section 20 of the contract)."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.config import (
    NatsBackendConfig,
    Setting,
    settings,
)
from pyoco_server.errors import SettingError

SETTINGS = list(settings(NatsBackendConfig))
VARIABLES = [setting for setting in SETTINGS if setting.has_variable]
NUMBERS = [setting for setting in VARIABLES if type(setting.default) in {int, float}]

#: The contract's table, word for word: the promise does not follow the code.
CONTRACT: dict[str, Any] = {
    "nats_url": "nats://127.0.0.1:4222",  # FLOW-476
    "work_subject_prefix": "pyoco.work",
    "default_tag": "default",
    "runs_kv_bucket": "pyoco_runs",
    "workers_kv_bucket": "pyoco_workers",
    "workers_kv_ttl_sec": 15.0,
    "worker_disconnect_timeout_sec": 20.0,
    "run_heartbeat_interval_sec": 1.0,
    "worker_heartbeat_interval_sec": 5.0,
    "cancel_grace_period_sec": 30.0,
    "consumer_ack_wait_sec": 30.0,
    "consumer_max_deliver": 20,
    "consumer_max_ack_pending": 200,
    "ack_progress_interval_sec": 10.0,
    "dlq_stream": "PYOCO_DLQ",  # FLOW-490
    "dlq_subject_prefix": "pyoco.dlq",
    "dlq_publish_execution_error": True,
    "dlq_max_age_sec": 604800,
    "dlq_max_msgs": 100000,
    "dlq_max_bytes": 536870912,
    "result_inline_max_bytes": 16_384,
    "output_max_bytes": 1_073_741_824,
    "run_outputs_max_bytes": 4_294_967_296,
    "tenant_outputs_max_bytes": 68_719_476_736,
    "logs_enabled": True,  # LOG-22
    "logs_stream": "PYOCO_LOGS",
    "logs_line_max_bytes": 16384,  # LOG-23
    "logs_run_head_bytes": 1048576,  # LOG-24
    "logs_run_tail_bytes": 7340032,
    "logs_max_age_sec": 2592000.0,  # LOG-25
    "logs_max_bytes": 2147483648,
    "logs_buffer_bytes": 4194304,  # LOG-26
    "logs_level": "INFO",  # LOG-27
    "max_run_snapshot_bytes": 262144,
    "workflow_yaml_max_bytes": 262144,
    "wheel_object_store_bucket": "pyoco_wheels",
    "wheel_max_bytes": 536870912,
    "wheel_sync_enabled": False,  # FLOW-500
    "wheel_sync_dir": ".pyoco/wheels",
    "wheel_sync_interval_sec": 10.0,
    "wheel_install_timeout_sec": 180.0,
    "wheel_history_kv_bucket": "pyoco_wheel_history",
    "wheel_history_ttl_sec": 7776000,
    "http_auth_mode": "none",
    "http_api_key_header": "X-API-Key",
    "auth_kv_bucket": "pyoco_auth",
    "auth_pepper": "",
    "dashboard_lang": "auto",  # FLOW-510
    "work_stream": "PYOCO_WORK",  # FLOW-388
    # Added by the design.
    "nats_user": "",
    "nats_password_file": "",
    "nats_creds": "",
    "nats_tls_ca": "",
    "nats_tls_cert": "",
    "nats_tls_key": "",
    "nats_inbox_prefix": "_INBOX",
    "jetstream_replicas": 1,
    "nats_sync": "1s",
    "runs_retention_sec": 2592000.0,
    "workers_retention_sec": 604800.0,
    "advisory_stream": "PYOCO_ADVISORIES",
    "clock_stream": "PYOCO_CLOCK",
    "delay_max_sec": 31_622_400.0,  # DELAY-3
    "schedules_kv_bucket": "pyoco_schedules",
    "schedules_max": 1000,  # SCHED-21
    "schedule_grace_sec": 5.0,  # SCHED-16
    "schedule_history": 1000,  # SCHED-19
    "receipts_kv_bucket": "pyoco_receipts",
    "idempotency_ttl_sec": 86400.0,
    "workflow_object_store_bucket": "pyoco_workflows",
    "wheel_unpacked_max_bytes": 0,
    "wheel_index": "none",
    "worker_slots": 0,
    "flow_resolver": "",
    "callable_allow": (),
    "http_hosts": (),
    "dashboard_read_only": False,
    "run_timeout_sec": 0.0,
    "abandon_after_sec": 120.0,
    "host_memory_max_bytes": 0,
    "host_runs_max": 10000,
    "health_port": 0,
    "health_host": "127.0.0.1",
    "drain_timeout_sec": 0.0,
    "data_dir": ".pyoco",
}


def from_env(**variables: str) -> NatsBackendConfig:
    return NatsBackendConfig.from_env({"PYOCO_LOAD_DOTENV": "0", **variables})


def test_every_setting_has_the_default_of_the_contract() -> None:
    """FLOW-386, FLOW-388, FLOW-476 to FLOW-510"""
    assert dataclasses.asdict(NatsBackendConfig()) == CONTRACT
    assert from_env() == NatsBackendConfig()


def test_a_config_is_frozen_and_takes_keywords_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NatsBackendConfig().default_tag = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        NatsBackendConfig("nats://127.0.0.1:4222")  # type: ignore[call-arg]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_every_setting_says_what_it_means_and_shows_a_good_example(setting: Setting) -> None:
    assert setting.help.endswith(".")
    assert setting.used_by
    setting.read(setting.example)


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("PYOCO_NATS_URL", " tls://user:pass@a.example:4222, b:4222 ", "nats_url", None),
        ("PYOCO_NATS_URL", "nats://[::1]:4222", "nats_url", None),
        ("PYOCO_CONSUMER_MAX_DELIVER", " 7 ", "consumer_max_deliver", 7),
        ("PYOCO_CANCEL_GRACE_PERIOD_SEC", "0", "cancel_grace_period_sec", 0.0),
        ("PYOCO_RUN_HEARTBEAT_INTERVAL_SEC", "2.5e-1", "run_heartbeat_interval_sec", 0.25),
        ("PYOCO_DLQ_MAX_AGE_SEC", "3600", "dlq_max_age_sec", 3600.0),
        ("PYOCO_WHEEL_SYNC_ENABLED", "1", "wheel_sync_enabled", True),
        ("PYOCO_HTTP_AUTH_MODE", "api_key", "http_auth_mode", None),
        ("PYOCO_AUTH_PEPPER", " spaces count ", "auth_pepper", " spaces count "),
        ("PYOCO_DASHBOARD_LANG", "JA", "dashboard_lang", "ja"),
        ("PYOCO_JETSTREAM_REPLICAS", "3", "jetstream_replicas", 3),
        ("PYOCO_NATS_SYNC", "always", "nats_sync", None),
        ("PYOCO_NATS_SYNC", "500ms", "nats_sync", None),
        ("PYOCO_CALLABLE_ALLOW", "a, b.c  d", "callable_allow", ("a", "b.c", "d")),
        ("PYOCO_CALLABLE_ALLOW", "", "callable_allow", ()),
        ("PYOCO_FLOW_RESOLVER", "my.flows:resolve", "flow_resolver", None),
        ("PYOCO_HTTP_HOSTS", " Runs.example, [::1] runs,runs", "http_hosts", ("runs.example", "[::1]", "runs")),
        ("PYOCO_HTTP_HOSTS", "", "http_hosts", ()),
        ("PYOCO_HTTP_HOSTS", "*", "http_hosts", ("*",)),
        ("PYOCO_DATA_DIR", "/var/lib/pyoco", "data_dir", None),
    ],
)
def test_a_variable_sets_its_field(variable: str, text: str, name: str, value: object) -> None:
    """FLOW-387"""
    assert getattr(from_env(**{variable: text}), name) == (text.strip() if value is None else value)


@pytest.mark.parametrize("word", ["1", "true", "YES", "On", "0", "False", "no", "OFF"])
def test_booleans_are_written_in_eight_ways(word: str) -> None:
    """FLOW-517"""
    assert from_env(PYOCO_DASHBOARD_READ_ONLY=word).dashboard_read_only is (word.lower() in {"1", "true", "yes", "on"})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PYOCO_RUN_HEARTBEAT_INTERVAL_SEC", "3O"),
        ("PYOCO_RUN_HEARTBEAT_INTERVAL_SEC", "0"),
        ("PYOCO_RUN_HEARTBEAT_INTERVAL_SEC", "-1"),
        ("PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC", "nan"),
        ("PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC", "1e999"),
        ("PYOCO_WHEEL_SYNC_INTERVAL_SEC", "inf"),
        ("PYOCO_CONSUMER_MAX_DELIVER", "0"),
        ("PYOCO_CONSUMER_MAX_DELIVER", "2.5"),
        ("PYOCO_CONSUMER_MAX_DELIVER", "1_000"),
        ("PYOCO_CONSUMER_MAX_DELIVER", ""),
        ("PYOCO_CONSUMER_MAX_DELIVER", "٢"),
        ("PYOCO_MAX_RUN_SNAPSHOT_BYTES", "9" * 5000),
        ("PYOCO_DLQ_MAX_BYTES", str(2**63 - 1)),
        ("PYOCO_JETSTREAM_REPLICAS", "6"),
        ("PYOCO_WHEEL_SYNC_ENABLED", "maybe"),
        ("PYOCO_HTTP_AUTH_MODE", "apikey"),
        ("PYOCO_HTTP_API_KEY_HEADER", "X API Key"),
        ("PYOCO_HTTP_HOSTS", "runs.example:8000"),
        ("PYOCO_HTTP_HOSTS", "http://runs.example"),
        ("PYOCO_HTTP_HOSTS", "*.example"),
        ("PYOCO_HTTP_HOSTS", "x" * 5000),
        ("PYOCO_DEFAULT_TAG", "a.b"),
        ("PYOCO_DEFAULT_TAG", ""),
        ("PYOCO_RUNS_KV_BUCKET", "pyoco.runs"),
        ("PYOCO_RUNS_KV_BUCKET", "pyoco_workers"),
        ("PYOCO_DLQ_STREAM", "PYOCO DLQ"),
        ("PYOCO_DLQ_STREAM", "PYOCO_WORK"),
        ("PYOCO_WORK_SUBJECT_PREFIX", "pyoco..work"),
        ("PYOCO_WORK_SUBJECT_PREFIX", "pyoco.*"),
        ("PYOCO_WORK_SUBJECT_PREFIX", "pyoco.>"),
        ("PYOCO_WORK_SUBJECT_PREFIX", "py oco"),
        ("PYOCO_WORK_SUBJECT_PREFIX", "$JS.API"),
        ("PYOCO_DLQ_SUBJECT_PREFIX", "pyoco.work.dead"),
        ("PYOCO_NATS_URL", "http://127.0.0.1:4222"),
        ("PYOCO_NATS_URL", "nats://127.0.0.1:99999"),
        ("PYOCO_NATS_URL", "nats://127.0.0.1:4222,"),
        ("PYOCO_NATS_URL", "memory://"),
        ("PYOCO_NATS_URL", "memory://a,memory://b"),
        ("PYOCO_NATS_URL", "nats://127.0.0.1:4222,memory://a"),
        ("PYOCO_NATS_SYNC", "1 second"),
        ("PYOCO_NATS_SYNC", "0s"),
        ("PYOCO_CALLABLE_ALLOW", "os;path"),
        ("PYOCO_FLOW_RESOLVER", "my_flows"),
        ("PYOCO_DATA_DIR", ""),
        ("PYOCO_LOAD_DOTENV", "perhaps"),
    ],
)
def test_a_bad_value_stops_and_names_its_variable(variable: str, text: str) -> None:
    """FLOW-389"""
    with pytest.raises(SettingError, match=rf"{variable}.*; example: PYOCO_\w+=") as caught:
        from_env(**{variable: text})
    assert isinstance(caught.value, ValueError)
    assert caught.value.text.err_id == "ERR-PYOCO-0018"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "values",
    [
        {"consumer_max_deliver": 0},
        {"consumer_max_deliver": True},
        {"consumer_max_deliver": 2.0},
        {"run_heartbeat_interval_sec": "1"},
        {"run_heartbeat_interval_sec": float("nan")},
        {"run_heartbeat_interval_sec": 10**400},
        {"wheel_sync_enabled": 1},
        {"default_tag": "a b"},
        {"http_auth_mode": "API_KEY"},
        {"dashboard_lang": "fr"},
        {"callable_allow": ["a"]},
        {"callable_allow": ("a", 1)},
        {"http_hosts": ["a"]},
        {"http_hosts": ("a", 1)},
        {"http_hosts": ("A",)},
        {"work_stream": "a.b"},
        {"auth_pepper": None},
        {"nats_url": None},
    ],
    ids=str,
)
def test_the_constructor_refuses_the_same(values: dict[str, Any]) -> None:
    """FLOW-389"""
    name = next(iter(values))
    with pytest.raises(SettingError, match="work_stream" if name == "work_stream" else f"PYOCO_{name.upper()}"):
        NatsBackendConfig(**values)
    with pytest.raises(SettingError):
        dataclasses.replace(NatsBackendConfig(), **values)


@pytest.mark.parametrize(
    ("progress", "ack_wait", "fine"), [("9.9", "10", True), ("10", "10", False), ("20", "10", False)]
)
def test_in_progress_acks_come_sooner_than_ack_wait(progress: str, ack_wait: str, fine: bool) -> None:
    """FLOW-313"""
    variables = {"PYOCO_ACK_PROGRESS_INTERVAL_SEC": progress, "PYOCO_CONSUMER_ACK_WAIT_SEC": ack_wait}
    if fine:
        assert from_env(**variables).ack_progress_interval_sec == float(progress)
    else:
        with pytest.raises(SettingError, match=r"PYOCO_ACK_PROGRESS_INTERVAL_SEC.*PYOCO_CONSUMER_ACK_WAIT_SEC.*=5$"):
            from_env(**variables)


def read_or_refused(setting: Setting, text: str) -> object:
    try:
        return setting.read(text)
    except SettingError as error:
        return error


@given(setting=st.sampled_from(NUMBERS), text=st.text() | st.integers().map(str) | st.floats().map(str))
def test_any_text_for_a_number_is_read_or_refused_by_name(setting: Setting, text: str) -> None:
    """FLOW-389"""
    answer = read_or_refused(setting, text)
    if isinstance(answer, SettingError):
        assert setting.variable in str(answer)
    else:
        assert type(answer) is type(setting.default)
        assert setting.check(answer) == answer


@given(setting=st.sampled_from(VARIABLES), text=st.text())
def test_any_text_for_any_variable_is_read_or_refused_by_name(setting: Setting, text: str) -> None:
    """FLOW-389"""
    answer = read_or_refused(setting, text)
    assert not isinstance(answer, SettingError) or setting.variable in str(answer)


def test_secrets_are_in_neither_repr_nor_errors() -> None:
    config = NatsBackendConfig(auth_pepper="hush-hush", nats_url="nats://anna:hush-hush@h:4222")
    assert "hush" not in repr(config)
    with pytest.raises(SettingError) as caught:
        from_env(PYOCO_NATS_URL="nat://anna:hush-hush@h:4222")
    assert "hush" not in str(caught.value)


def test_options_win_over_the_environment_over_the_file_over_the_default(tmp_path: Path) -> None:
    """FLOW-518"""
    file = tmp_path / "settings.env"
    file.write_text(
        "PYOCO_DEFAULT_TAG=file\nPYOCO_DLQ_STREAM=FILE\nPYOCO_CONSUMER_MAX_DELIVER=3\nPYOCO_WORKER_SLOTS=4\n"
    )
    environ = {"PYOCO_ENV_FILE": str(file), "PYOCO_DEFAULT_TAG": "environ", "PYOCO_DLQ_STREAM": "ENVIRON"}
    before = dict(os.environ)

    config = NatsBackendConfig.from_env(environ, default_tag="option", dlq_stream=None, worker_slots="5")

    assert (config.default_tag, config.dlq_stream, config.consumer_max_deliver) == ("option", "ENVIRON", 3)
    assert config.worker_slots == 5
    assert config.runs_kv_bucket == "pyoco_runs"
    assert dict(os.environ) == before


def test_an_option_is_checked_and_an_unknown_one_is_a_bug() -> None:
    environ = {"PYOCO_LOAD_DOTENV": "0"}
    with pytest.raises(SettingError, match="PYOCO_DASHBOARD_LANG"):  # FLOW-257: lenient in the variable only
        NatsBackendConfig.from_env(environ, dashboard_lang="fr")
    with pytest.raises(SettingError, match="PYOCO_WORKER_SLOTS"):
        NatsBackendConfig.from_env(environ, worker_slots=-1)
    with pytest.raises(TypeError):
        NatsBackendConfig.from_env(environ, colour="red")


def test_an_unknown_dashboard_language_is_auto_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """FLOW-257"""
    with caplog.at_level(logging.WARNING):
        assert from_env(PYOCO_DASHBOARD_LANG="fr").dashboard_lang == "auto"
    assert "PYOCO_DASHBOARD_LANG='fr'" in caplog.text


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({"LANG": "ja_JP.UTF-8"}, "ja"),
        ({"LANG": "ja"}, "ja"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LC_ALL": "", "LC_MESSAGES": "ja_JP", "LANG": "en_US"}, "ja"),
        ({"LC_ALL": "C", "LANG": "ja_JP"}, "en"),
        ({"LANG": "jam_JM"}, "en"),
        ({}, "en"),
    ],
    ids=json.dumps,
)
def test_auto_follows_the_locale_of_the_process(environ: dict[str, str], language: str) -> None:
    """FLOW-254, FLOW-256"""
    assert NatsBackendConfig().language(environ) == language
    assert NatsBackendConfig(dashboard_lang="ja").language(environ) == "ja"


def test_slots_default_to_the_cpus_this_process_may_use() -> None:
    """DESIGN 9.17"""
    assert NatsBackendConfig().slots >= 1
    assert NatsBackendConfig(worker_slots=3).slots == 3
