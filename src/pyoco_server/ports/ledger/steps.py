"""Every step of a priced run as one conditional UPDATE; its sources and changes are those of the table in core.

Statements are built once and kept: everything that differs between calls is a bind parameter. The names of bind
parameters begin with an underscore, so that none equals a column's name.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Executable, Update, and_, bindparam, or_, update

from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import STEPS, At, StateChange
from pyoco_server.ports.ledger.dialect import Sql, clock
from pyoco_server.ports.ledger.port import LOST, Lost
from pyoco_server.ports.ledger.quick import keep
from pyoco_server.ports.ledger.rows import COLUMNS, run_of, stage_column
from pyoco_server.ports.ledger.schema import runs
from pyoco_server.ports.ledger.types import BigInt, RunId

__all__ = ["bound", "is_at", "step_update", "take"]

_RUN = bindparam("_run", type_=RunId())
_VERSION = bindparam("_version", type_=BigInt)


def bound(column: Any) -> ColumnElement[Any]:
    """A bind parameter for the value of this column."""
    return bindparam(f"_{column.name}", type_=column.type)


def is_at(step: str) -> ColumnElement[bool]:
    """Whether the row is in a state from which the step is allowed."""
    return and_(runs.c.run_id == _RUN, or_(*(_is(at) for at in sorted(STEPS[step].sources, key=str))))


def _is(at: At) -> ColumnElement[bool]:
    return and_(
        runs.c.status == at.status.value,
        runs.c.money_state == at.money.value,
        runs.c.finalize_stage.is_(None) if stage_column(at.stage) is None else runs.c.finalize_stage == at.stage.value,
    )


def step_update(
    step: str,
    *guards: ColumnElement[bool],
    on_postgres: bool,
    change: StateChange | None = None,
    also: dict[str, Any] | None = None,
) -> Update:
    """Build the UPDATE, which returns the entire row. `change` selects one of a step that has several. Callers cache
    the result."""
    taken = STEPS[step]
    if change is None:
        (change,) = taken.changes
    assert change in taken.changes
    values: dict[str, Any] = dict(also or {})
    if change.status is not None:
        values["status"] = change.status.value
    if change.money is not None:
        values["money_state"] = change.money.value
    if change.stage is not None:
        values["finalize_stage"] = stage_column(change.stage)
    if taken.counts:  # PRICED-15; `updated_at` changes only together with the version
        values["version"] = runs.c.version + 1
        values["updated_at"] = clock("_now", on_postgres=on_postgres)
    guarded = update(runs).where(is_at(step), runs.c.version == _VERSION, *guards)
    return keep(guarded.values(**values).returning(*COLUMNS))


def take(sql: Sql, statement: Executable, run_id: str, version: int, **values: Any) -> PricedRun | Lost:
    """Execute a step. `values` are bound with an underscore before their names; `_now` defaults to the current time."""
    parameters = {"_run": run_id, "_version": version, "_now": sql.shift()}
    parameters |= {f"_{name}": value for name, value in values.items()}
    row = sql.connection.execute(statement, parameters).first()
    return run_of(row) if row is not None else LOST
