"""Subjects and patterns, as in NATS (section 7)."""

from __future__ import annotations

from typing import Final

from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import is_exec_name

__all__ = [
    "PATTERNS_MAX",
    "PATTERN_DEFAULT",
    "ack_subject",
    "assign_subject",
    "can_match_assign",
    "check_pattern",
    "exec_of_submit",
    "matches",
    "result_subject",
    "submit_subject",
]

#: The pattern of a worker that names none: every program.
PATTERN_DEFAULT: Final = "job.assign.*"
#: The maximum number of patterns per worker.
PATTERNS_MAX: Final = 32
_SHOWN_MAX = 40
_SUBMIT = "job.submit."
#: Invalid tokens of a subject.
_NO_TOKENS = frozenset({"", "*", ">"})


def submit_subject(exec_name: str) -> str:
    return _SUBMIT + exec_name


def assign_subject(exec_name: str) -> str:
    """Return the subject that the patterns of workers are matched against."""
    return f"job.assign.{exec_name}"


def ack_subject(exec_name: str) -> str:
    return f"job.ack.{exec_name}"


def result_subject(exec_name: str) -> str:
    return f"job.result.{exec_name}"


def exec_of_submit(subject: str) -> str | None:
    """Return the program named by the subject of a SubmitJob; None: it is not such a subject."""
    return subject.removeprefix(_SUBMIT) if subject.startswith(_SUBMIT) else None


def matches(pattern: str, subject: str) -> bool:
    """Match exact tokens; `*` matches one token, `>` at the end one or more (GRID-28). O(length)."""
    wanted, given = pattern.split("."), subject.split(".")
    if not _NO_TOKENS.isdisjoint(given):
        return False
    for place, part in enumerate(wanted):
        if part == ">":
            return place == len(wanted) - 1 and len(given) > place
        if place >= len(given) or part not in ("*", given[place]):
            return False
    return len(wanted) == len(given)


def check_pattern(pattern: str) -> None:
    """Raise GridRefused if the pattern is invalid: BAD_HELLO, with the invalid token (GRID-30)."""
    parts = pattern.split(".")
    for place, part in enumerate(parts, 1):
        problem = _part_problem(part, is_last=place == len(parts))
        if problem is not None:
            raise GridRefused(Code.BAD_HELLO, f"Pattern: token {place} {problem}", field="Pattern")


def _part_problem(part: str, *, is_last: bool) -> str | None:
    if not part:
        return "is empty"
    if part == ">" and not is_last:
        return "is '>', which may only stand at the end"
    if len(part) > 1 and ("*" in part or ">" in part):
        return f"is {part[:_SHOWN_MAX]!r}: '*' and '>' stand alone between dots"
    if any(character.isspace() or not character.isprintable() for character in part):
        return "has white space or a control character"
    return None


def can_match_assign(pattern: str) -> bool:
    """Return whether a valid pattern can match the assignment of any program at all."""
    parts = pattern.split(".")
    if parts[-1] == ">" and len(parts) <= 3:
        parts = [*parts[:-1], *["*"] * (4 - len(parts))]
    if len(parts) != 3:
        return False
    first, second, program = parts
    return first in ("*", "job") and second in ("*", "assign") and (program == "*" or is_exec_name(program))
