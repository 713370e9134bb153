"""Leases of programs fit the AckWait of a deployment that is older than programs."""

from __future__ import annotations

import pytest

from pyoco_server.config.grid import GridConfig
from pyoco_server.errors import SettingError


@pytest.mark.parametrize(
    ("variables", "lease_seconds", "heartbeat_seconds"),
    [
        ({}, 20.0, 5.0),
        ({"PYOCO_CONSUMER_ACK_WAIT_SEC": "12"}, 8.0, 2.0),
        ({"PYOCO_CONSUMER_ACK_WAIT_SEC": "300"}, 20.0, 5.0),
        ({"PYOCO_CONSUMER_ACK_WAIT_SEC": "12", "EXEC_LEASE_FRESH_SEC": "4"}, 4.0, 1.0),
        ({"PYOCO_CONSUMER_ACK_WAIT_SEC": "12", "EXEC_RUN_HEARTBEAT_SEC": "0.5"}, 8.0, 0.5),
        ({"PYOCO_CONSUMER_ACK_WAIT_SEC": "soon"}, 20.0, 5.0),
        ({"PYOCO_CONSUMER_ACK_WAIT_SEC": "-3"}, 20.0, 5.0),
    ],
    ids=str,
)
def test_what_is_not_said_of_leases_fits_the_ack_wait(
    variables: dict[str, str], lease_seconds: float, heartbeat_seconds: float
) -> None:
    """GRID-56"""
    config = GridConfig.read(variables)
    assert (config.exec_lease_fresh_sec, config.exec_run_heartbeat_sec) == (lease_seconds, heartbeat_seconds)
    config.check_ack_wait(max(12.0, lease_seconds + 1))


@pytest.mark.parametrize(
    "said", [{"EXEC_LEASE_FRESH_SEC": "20"}, {"EXEC_RUN_HEARTBEAT_SEC": "5"}], ids=["lease", "heartbeat"]
)
def test_what_was_said_and_does_not_fit_is_refused(said: dict[str, str]) -> None:
    """GRID-56: nothing that somebody chose is changed behind their back"""
    with pytest.raises(SettingError, match=next(iter(said))):
        GridConfig.read({"PYOCO_CONSUMER_ACK_WAIT_SEC": "12", **said}).check_ack_wait(12.0)
