"""The settings of priced runs: names, defaults, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from pyoco_server.config import AwsSettings, PricedConfig, priced_from_env
from pyoco_server.config.packs import PackConfig
from pyoco_server.errors import SettingError

QUIET = {"PYOCO_LOAD_DOTENV": "0"}


def read(**variables: str) -> PricedConfig:
    return priced_from_env({**QUIET, **variables})[0]


def test_every_timer_has_the_default_of_the_contract() -> None:
    """PRICED-2, PRICED-3"""
    config = read()
    assert config == PricedConfig()
    assert {name: value for name, value in dataclasses.asdict(config).items() if name.endswith(("_sec", "_min"))} == {
        "priced_lease_ttl_sec": 120,
        "priced_heartbeat_sec": 30,
        "priced_reaper_interval_sec": 30,
        "priced_sweeper_interval_sec": 60,
        "priced_reconcile_interval_sec": 60,
        "priced_reconcile_after_sec": 300,
        "priced_reservation_ttl_sec": 3600,
        "priced_delay_max_sec": 86_400,  # DELAY-3
        "priced_submit_abandon_sec": 60,
        "priced_resend_after_sec": 60,
        "priced_orphan_after_sec": 600,
        "priced_retention_sec": 2_592_000,
        "priced_retention_interval_sec": 3600,
        "priced_audit_interval_sec": 3600,
        "priced_rate_limit_per_min": 60,
    }


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PYOCO_PRICED_RESERVATION_TTL_SEC", "2"),
        ("PYOCO_PRICED_RETENTION_SEC", "3"),
    ],
)
def test_small_whole_seconds_are_taken(variable: str, value: str) -> None:
    assert getattr(read(**{variable: value}), variable[6:].lower()) == int(value)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "", "ten", "1e3", "٣"])
def test_what_is_no_whole_number_of_seconds_is_refused(value: str) -> None:
    with pytest.raises(SettingError, match="PYOCO_PRICED_RETENTION_SEC"):
        read(PYOCO_PRICED_RETENTION_SEC=value)


def test_a_lease_must_outlive_its_heartbeat() -> None:
    with pytest.raises(SettingError, match="priced_heartbeat_sec=30 must be below priced_lease_ttl_sec=30"):
        PricedConfig(priced_lease_ttl_sec=30)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PYOCO_LEDGER_URL", "mysql://somebody:secret@host/db"),
        ("PYOCO_LEDGER_URL", "ledger.db"),
        ("PYOCO_LEDGER_URL", "postgresql://host:port/db"),
        ("PYOCO_BUDGET_URL", "http://host"),
        ("PYOCO_LEDGER_URL", "memory://"),
        ("PYOCO_LEDGER_URL", "memory://a/b"),
        ("PYOCO_BUDGET_URL", "memory://anna:secret@host"),
        ("PYOCO_PACK_QUEUE_URL", "sqs:"),
        ("PYOCO_RESULTS_URL", "dpp-results"),
    ],
)
def test_an_address_of_another_kind_is_refused_without_repeating_a_password(variable: str, value: str) -> None:
    with pytest.raises(SettingError, match=variable) as caught:
        read(**{variable: value})
    assert "secret" not in str(caught.value)


def test_stores_in_memory_have_a_name() -> None:
    settings = read(PYOCO_LEDGER_URL="memory://a.test-1", PYOCO_BUDGET_URL="memory://a_test")
    assert settings.ledger_address("/b") == "memory://a.test-1"
    assert settings.is_split


def test_redis_must_not_forget_a_reservation_that_may_still_be_used() -> None:
    """PRICED-50"""
    month = {"PYOCO_PRICED_RESERVATION_TTL_SEC": "2592000"}
    assert read(**month).priced_reservation_ttl_sec == 2_592_000
    there = {"PYOCO_BUDGET_URL": "redis://127.0.0.1:6379/0"}
    with pytest.raises(SettingError, match="PYOCO_PRICED_RESERVATION_TTL_SEC=2592000 must be at most 2505600 while"):
        read(**month, **there)
    assert read(PYOCO_PRICED_RESERVATION_TTL_SEC="2505600", **there).is_split


def test_what_is_no_name_of_a_pack_is_refused() -> None:
    """Which names there are is known where packs are installed, and not here."""
    assert read(PYOCO_PACKS="decision, url").packs == ("decision", "url")
    assert read().packs == ()
    assert read(PYOCO_PACKS="decision,magic").packs == ("decision", "magic")
    with pytest.raises(SettingError, match="must hold names of packs, with commas between"):
        read(PYOCO_PACKS="decision,My-Pack")


@pytest.mark.parametrize("value", [",", " , ,"])
def test_a_list_of_packs_that_names_none_does_not_mean_all(value: str) -> None:
    with pytest.raises(SettingError, match=r"PYOCO_PACKS=.* names no pack; example: PYOCO_PACKS=decision,url"):
        read(PYOCO_PACKS=value)
    assert read(PYOCO_PACKS=" ").packs == ()  # as good as unset


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("models.example.com/v1", "must begin with http:// or https://"),
        ("ftp://models.example.com", "must begin with http:// or https://"),
        ("http://", "must have a host"),
        ("https:///v1", "must have a host"),
        ("https://me:secret@:443/v1", "must have a host"),
        ("http://models.example.com:0/v1", "a port from 1 to 65535"),
        ("http://models.example.com:65536/v1", "a port from 1 to 65535"),
        ("http://models.example.com:secret/v1", "a port from 1 to 65535"),
        ("http://[::1/v1", "must have a host"),
        ("http://models example.com/v1", "must have a host"),
    ],
)
def test_an_address_of_models_that_nobody_can_reach_is_refused(value: str, told: str) -> None:
    with pytest.raises(SettingError, match=f"PYOCO_DECISION_URL .*{told}.*; example: ") as caught:
        read(PYOCO_DECISION_URL=value)
    assert "secret" not in str(caught.value)
    with pytest.raises(SettingError):
        PackConfig(decision_url=value)


@pytest.mark.parametrize("value", ["", "http://127.0.0.1:11434/v1", "https://[::1]:1/v1", " https://a.example/v1 "])
def test_an_address_of_models_is_taken(value: str) -> None:
    assert read(PYOCO_DECISION_URL=value, PYOCO_DECISION_MODEL="m").pack.decision_url == value.strip()


def test_a_server_of_models_needs_a_model() -> None:
    with pytest.raises(SettingError, match="PYOCO_DECISION_MODEL is needed with PYOCO_DECISION_URL; example: "):
        read(PYOCO_DECISION_URL="http://127.0.0.1:11434/v1")


@pytest.mark.parametrize("value", ["a key", "schlüssel", "a\nb"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(SettingError, match="PYOCO_DECISION_API_KEY must be") as caught:
        read(PYOCO_DECISION_API_KEY=value)
    assert value not in str(caught.value)


def test_the_ledger_lies_in_the_data_directory_unless_it_is_named() -> None:
    assert PricedConfig().ledger_address("/var/lib/pyoco") == "sqlite:////var/lib/pyoco/ledger.db"
    assert read(PYOCO_LEDGER_URL="sqlite:////a/l.db").ledger_address("/b") == "sqlite:////a/l.db"
    assert not PricedConfig().is_split
    assert read(PYOCO_BUDGET_URL="redis://127.0.0.1:6379/0").is_split


def test_secrets_are_in_no_representation() -> None:
    config = read(
        PYOCO_LEDGER_URL="postgresql://me:hidden@host:1/db",
        PYOCO_BUDGET_URL="redis://:hidden@host:1/0",
        PYOCO_RESULTS_SECRET="hidden",
    )
    assert "hidden" not in repr(config)


def test_aws_is_told_by_its_own_variables() -> None:
    assert AwsSettings.read({}) == AwsSettings(endpoint_url=None, region="us-east-1")
    there = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"}
    assert AwsSettings.read(there) == AwsSettings(endpoint_url="http://127.0.0.1:9", region="eu-west-1")
