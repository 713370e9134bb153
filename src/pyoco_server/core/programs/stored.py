"""The members of a program run in its stored form: flat, beside those of every run (GRID-150, GRID-151)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from pyoco_server.core.programs.record import Artifact, Program

__all__ = ["MEMBERS", "program_members", "read_program"]

MEMBERS = frozenset(item.name for item in fields(Program))
_ARTIFACT_MEMBERS = ("name", "object", "size", "sha256")


def program_members(program: Program) -> dict[str, Any]:
    """Return the members to store, without those that are None or False."""
    members = {name: value for name, value in vars(program).items() if value is not None and value is not False}
    members["artifacts"] = [vars(each) for each in program.artifacts]
    return members


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


_FORMS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("max_attempts", "lost", "slot"), _is_count),
    **dict.fromkeys(("not_before", "run_seconds", "exit_code"), _is_number),
    **dict.fromkeys(
        ("stdout_truncated", "stderr_truncated", "dlq_due", "dlq_done"), lambda value: isinstance(value, bool)
    ),
    "artifacts": lambda value: isinstance(value, list),
    "job": lambda value: isinstance(value, dict),
}


def read_program(snapshot: Mapping[str, Any]) -> Program:
    """Parse the members of a program run. Raises KeyError, TypeError or ValueError if they are missing or invalid."""
    known = {name: value for name, value in snapshot.items() if name in MEMBERS and value is not None}
    for name, value in known.items():
        if not _FORMS.get(name, _is_text)(value):
            raise ValueError(f"{name} cannot be what it is")
    known["artifacts"] = tuple(
        Artifact(*(each[name] for name in _ARTIFACT_MEMBERS)) for each in known.get("artifacts", ())
    )
    return Program(**known)


def _is_text(value: object) -> bool:
    return isinstance(value, str)
