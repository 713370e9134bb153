"""Copies as one server tells of them; what a cluster does with them is in `tests/system/test_cluster_replicas.py`."""

from __future__ import annotations

from typing import Any

import pytest

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.errors import DeploymentRefused
from pyoco_server.ports.nats.link import Link, Missing
from pyoco_server.ports.replicas.jetstream import JetStreamReplicas

_TRIAL = "PYOCO_REPLICAS_TRIAL"


def test_every_kind_of_run_brings_its_streams() -> None:
    """By the tables of resources: whoever adds one has it here."""
    config = NatsBackendConfig()
    flows = set(JetStreamReplicas(None, config).names)  # type: ignore[arg-type]  # nobody is asked
    whole = set(JetStreamReplicas(None, config, PricedConfig(), GridConfig()).names)  # type: ignore[arg-type]
    assert {"PYOCO_WORK", "KV_pyoco_runs", "OBJ_pyoco_wheels", "PYOCO_ADVISORIES", "KV_pyoco_receipts"} <= flows
    assert {"DPP_RUNS", "DPP_RUNS_DLQ", "OBJ_dpp-results", "OBJ_dpp-inputs", "KV_pyoco_secrets"} <= whole - flows
    assert {"PYOCO_EXEC", "PYOCO_EXEC_EVENTS", "OBJ_pyoco_artifacts", "KV_pyoco_exec_slots"} <= whole - flows


async def test_a_server_that_is_alone_keeps_one_copy_and_refuses_three(link: Link, prepared: NatsBackendConfig) -> None:
    """GRID-6: at once, and nothing of the trial is left"""
    replicas = JetStreamReplicas(link, prepared)
    found = await replicas.look(prepared.work_stream)
    assert found is not None
    assert found.is_complete(1)
    assert (found.wanted, found.is_clustered, found.followers) == (1, False, ())
    with pytest.raises(DeploymentRefused, match="3 copies need 3 JetStream nodes that answer"):
        await replicas.try_count(3)
    with pytest.raises(DeploymentRefused, match=f"NATS refused to keep 3 copies of {prepared.work_stream}"):
        await replicas.change(prepared.work_stream, 3)
    await replicas.change(prepared.work_stream, 1)
    with pytest.raises(Missing):
        await link.api(f"STREAM.INFO.{_TRIAL}", {}, dict[str, Any])


async def test_a_trial_that_somebody_left_is_removed(link: Link, prepared: NatsBackendConfig) -> None:
    await link.api(f"STREAM.CREATE.{_TRIAL}", {"name": _TRIAL, "subjects": [f"{_TRIAL}.old"]}, dict[str, Any])
    await JetStreamReplicas(link, prepared).try_count(1)
    with pytest.raises(Missing):
        await link.api(f"STREAM.INFO.{_TRIAL}", {}, dict[str, Any])


async def test_what_is_not_there_is_not_told_of(link: Link, config: NatsBackendConfig) -> None:
    replicas = JetStreamReplicas(link, config)
    assert [await replicas.look(name) for name in replicas.names] == [None] * len(replicas.names)
