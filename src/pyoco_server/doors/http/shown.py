"""Render runs in the form that all routes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco_server.core.change import last_change
from pyoco_server.core.priced.projection import is_withheld, redacted
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.snapshot import encode, shown_snapshot
from pyoco_server.core.values.shown import RESULT_BYTES_MAX
from pyoco_server.ports.index.port import Summary

__all__ = ["shown_line", "shown_listed", "shown_params", "shown_run"]

#: How much of the params a line of a list shows.
_PARAMS_LENGTH_MAX = 300


def shown_run(run: Run, result_bytes_max: int = RESULT_BYTES_MAX) -> dict[str, Any]:
    """Render the complete record and its last change."""
    snapshot = shown_snapshot(run, result_bytes_max)
    change = last_change(run)
    by = {"kind": change.by.kind.value, "id": change.by.id}
    snapshot["last_change"] = {"what": change.what.value, "at": change.at, "by": by}
    return snapshot


def shown_listed(run: Run, caller: Caller) -> dict[str, Any]:
    """Render a run of a list. Lists also contain priced runs of other tenants, which are redacted (SAFE-5)."""
    snapshot = shown_run(run)
    snapshot.get("result", {}).pop("value", None)  # RES-3
    return redacted(snapshot) if is_withheld(caller, run.kind, run.tenant_id) else snapshot


def shown_params(params: Mapping[str, Any]) -> str:
    """Render params as one line: `name=value`, cut to a few hundred characters."""
    parts: list[str] = []
    left = _PARAMS_LENGTH_MAX
    for name, value in params.items():
        text = value if isinstance(value, str) else encode(value).decode()
        parts.append(f"{name}={text}"[: left + 1])
        left -= len(parts[-1]) + 1
        if left < 0:
            break
    line = " ".join(parts)
    return line if len(line) <= _PARAMS_LENGTH_MAX else f"{line[: _PARAMS_LENGTH_MAX - 1]}…"


def shown_line(line: Summary, caller: Caller) -> dict[str, Any]:
    """FLOW-109: unknown values are left out. A caller with a tenant only gets runs of that tenant."""
    shown = {name: value for name, value in vars(line).items() if value is not None}
    if "try_number" in shown:
        shown["try"] = shown.pop("try_number")
    for more in ("pack", "program"):
        shown |= shown.pop(more, {})
    return redacted(shown) if is_withheld(caller, line.kind, caller.tenant_id) else shown
