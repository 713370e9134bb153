"""The rights of each role follow the settings: other names, other subjects, and nothing for what is not there."""

from __future__ import annotations

import dataclasses

import pytest

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.ports.nats.grid_resources import grid_resources
from pyoco_server.ports.nats.permissions import ROLES, Role, rights_of
from pyoco_server.ports.nats.resources import priced_resources, resources_of

CONFIG, PRICED, GRID = NatsBackendConfig(), PricedConfig(priced_enabled=True), GridConfig()
SERVING = [role for role in ROLES if role is not Role.ADMIN]
#: Settings that name something in NATS.
NAMES = {
    "work_stream": "OTHER_WORK",
    "dlq_stream": "OTHER_DLQ",
    "advisory_stream": "OTHER_ADVISORIES",
    "runs_kv_bucket": "other_runs",
    "workers_kv_bucket": "other_workers",
    "auth_kv_bucket": "other_auth",
    "receipts_kv_bucket": "other_receipts",
    "wheel_history_kv_bucket": "other_history",
    "wheel_object_store_bucket": "other_wheels",
    "workflow_object_store_bucket": "other_workflows",
    "work_subject_prefix": "other.work",
    "dlq_subject_prefix": "other.dlq",
}


def published(role: Role, config: NatsBackendConfig = CONFIG, priced: PricedConfig = PRICED) -> tuple[str, ...]:
    return rights_of(role, config, priced, GRID).publish


@pytest.mark.parametrize("role", SERVING)
def test_other_names_mean_other_subjects(role: Role) -> None:
    own = NatsBackendConfig(**NAMES)  # type: ignore[arg-type]  # all of these are text
    text = "\n".join(published(role, own))
    olds = [str(getattr(CONFIG, name)) for name in NAMES]
    assert [old for old in olds if f".{old}." in f".{text}." or f"_{old}." in text] == []
    assert "other_runs" in text


def test_every_stream_is_somebodys() -> None:
    """A stream that no role may look at is one that this table has forgotten."""
    resources = (*resources_of(CONFIG), *grid_resources(CONFIG, GRID), *priced_resources(CONFIG, PRICED))
    seen = {subject for role in SERVING for subject in published(role)}
    assert [each.name for each in resources if f"$JS.API.STREAM.INFO.{each.name}" not in seen] == []


@pytest.mark.parametrize("role", SERVING)
def test_nobody_who_serves_may_do_what_the_operator_does(role: Role) -> None:
    rights = rights_of(role, CONFIG, PRICED, GRID)
    acts = {subject.split(".")[3] for subject in rights.publish if subject.startswith("$JS.API.STREAM.")}
    # SAFE-14, SAFE-15: names of streams, and queues and registries that a keeper creates again when they are missing.
    assert acts - {"INFO", "MSG", "PURGE"} == {
        Role.GATEWAY: {"NAMES"},
        Role.KEEPER: {"NAMES", "CREATE"},
    }.get(role, set())
    created = {subject.rpartition(".")[2] for subject in rights.publish if ".STREAM.CREATE." in subject}
    assert not any(name.startswith("OBJ_") or name in {"KV_pyoco_runs", "KV_pyoco_auth"} for name in created)
    purged = {subject.rpartition(".")[2] for subject in rights.publish if ".PURGE." in subject}
    assert all(name.startswith("OBJ_") for name in purged)
    if role is Role.WORKER:  # what is left of an output that it could not store whole
        assert purged == {f"OBJ_{CONFIG.outputs_bucket}"}
    assert not {">", "*", "$JS.>", "_INBOX.>"} & {*rights.publish, *rights.subscribe}
    assert not [subject for subject in rights.publish if subject.startswith(("$JS.API.*", "$JS.API.>", "$SYS"))]


@pytest.mark.parametrize("role", SERVING)
def test_what_lies_elsewhere_needs_no_right_here(role: Role) -> None:
    off = "\n".join(published(role, priced=PricedConfig(priced_enabled=False)))
    assert "dpp" not in off.lower()
    assert "secrets" not in off
    assert "pyoco_priced" not in off
    elsewhere = dataclasses.replace(PRICED, pack_queue_url="sqs://queue", results_url="s3://results")
    # Which ledger the deployment uses is in NATS in any case.
    kept = [subject for subject in published(role, priced=elsewhere) if "pyoco_priced" not in subject]
    assert "\n".join(kept) == off


def test_gateways_alone_say_which_ledger_the_deployment_uses() -> None:
    """SAFE-12: the others compare with it, and try whether a write is stored"""
    for role in SERVING:
        said = {subject for subject in published(role) if subject.startswith("$KV.pyoco_priced.")}
        may = {Role.GATEWAY: {"$KV.pyoco_priced.>"}, Role.DOOR: set[str]()}
        assert said == may.get(role, {"$KV.pyoco_priced.probe.>"})
        reads = "$JS.API.STREAM.MSG.GET.KV_pyoco_priced" in published(role)
        assert reads == (role is not Role.DOOR)


def test_workers_do_not_come_near_the_keys_and_only_gateways_write_them() -> None:
    """A keeper checks the keys of those who wrote schedules (SCHED-14)."""
    near = {role for role in SERVING if any("pyoco_auth" in subject for subject in published(role))}
    assert near == {Role.GATEWAY, Role.DOOR, Role.KEEPER}
    assert {role for role in SERVING if "$KV.pyoco_auth.>" in published(role)} == {Role.GATEWAY}


def test_schedules_are_written_by_gateways_and_keepers() -> None:
    near = {role for role in SERVING if any("pyoco_schedules" in subject for subject in published(role))}
    assert near == {role for role in SERVING if "$KV.pyoco_schedules.>" in published(role)}
    assert near == {Role.GATEWAY, Role.KEEPER}
