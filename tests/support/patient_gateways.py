"""Gateways of tests wait longer than those of users before they say 503 or leave something out: a busy machine is no
outage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyoco_server.actions import attend, explain_wait, submit_many
from pyoco_server.actions.priced import check_ready, look_for_trouble
from pyoco_server.actions.programs import explain_wait as explain_wait_of_programs
from pyoco_server.doors.http import health, state
from pyoco_server.loops import feed
from pyoco_server.ports.registry import jetstream as registry

__all__ = ["impatient_gateways", "patient_gateways"]

_LIMITS = (
    (attend, "_SECONDS_MAX", 60.0),
    (attend, "_PRICED_SECONDS_MAX", 90.0),  # more than `look_for_trouble` takes
    (check_ready, "READY_SECONDS", 60.0),
    (explain_wait, "SECONDS_MAX", 60.0),
    (explain_wait_of_programs, "SECONDS_MAX", 60.0),
    (feed, "SILENCE_SECONDS", 60.0),
    (health, "_READY_SECONDS", 60.0),
    (look_for_trouble, "_SECONDS", 60.0),
    (registry, "_FRESH_SECONDS", 60.0),
    (state, "_OWN_WRITE_SECONDS", 60.0),
    (state, "_SETTLE_SECONDS", 60.0),
    (submit_many, "_PATIENCE_SECONDS", 60.0),
)


@pytest.fixture
def impatient_gateways() -> None:
    """For who looks at what a gateway does when it has waited long enough."""


@pytest.fixture(autouse=True)
def patient_gateways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Those in this process, unless a test uses `impatient_gateways`."""
    with pytest.MonkeyPatch.context() as patch:
        if "impatient_gateways" not in request.fixturenames:
            for module, limit, seconds in _LIMITS:
                patch.setattr(module, limit, seconds)
        yield
