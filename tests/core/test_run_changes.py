"""The members that a move may change are those of the records, with the same types."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pyoco_server.core.programs.record import Program, ProgramChanges
from pyoco_server.core.run import Run, RunChanges

#: What a run is from its submission to its end.
FIXED = {
    Run: {"run_id", "kind", "flow_name", "submitted_at"},
    Program: {"job_id", "group", "exec_name", "client_id", "fingerprint", "max_attempts", "retry_of"},
}


@pytest.mark.parametrize(("record", "changes"), [(Run, RunChanges), (Program, ProgramChanges)])
def test_every_member_but_the_fixed_ones_may_change_and_has_the_type_of_its_field(record: Any, changes: Any) -> None:
    expected = {field.name: field.type for field in fields(record) if field.name not in FIXED[record]}
    assert {name: hint.__forward_arg__ for name, hint in changes.__annotations__.items()} == expected
