"""Problem documents for what never reached the server: the same members as its own (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyoco_server.core.priced.reasons import HTTP_STATUS, Reason, problem_type, title_of
from pyoco_server.errors import Problem

__all__ = ["INPUTS", "RUNS", "ArgumentsRefused", "RunUnknown", "problem", "refusal"]

#: Where runs are submitted.
RUNS = "/v1/runs"
#: Where files are uploaded.
INPUTS = "/v1/inputs"

#: As many as somebody can read.
_PROBLEMS_MAX = 20


class ArgumentsRefused(Exception):
    """The arguments of a tool are not what it asks for; nothing was sent."""

    def __init__(self, problems: Iterable[Problem], path: str = RUNS) -> None:
        super().__init__("the arguments are not valid")
        self.problems, self.path = tuple(problems), path


class RunUnknown(Exception):
    """No run can have this id; nothing was sent."""

    def __init__(self, path: str) -> None:
        super().__init__("there is no such run")
        self.path = path


def problem(reason: Reason, detail: str, trace_id: str, instance: str = RUNS) -> dict[str, Any]:
    return {
        "type": problem_type(reason),
        "title": title_of(reason),
        "status": HTTP_STATUS[reason],
        "detail": detail,
        "instance": instance,
        "reason_code": reason.value,
        "trace_id": trace_id,
    }


def refusal(error: ArgumentsRefused, trace_id: str) -> dict[str, Any]:
    """What is wrong with the arguments, and where; never what they were."""
    document = problem(
        Reason.VALIDATION_FAILED, "The arguments are not valid. Nothing was submitted.", trace_id, error.path
    )
    document["errors"] = [
        {"pointer": _pointer(each.loc), "message": each.msg} for each in error.problems[:_PROBLEMS_MAX]
    ]
    return document


def _pointer(loc: tuple[str | int, ...]) -> str:
    """Every name in it is ours, or of letters that need no escape (RFC 6901)."""
    return "".join(f"/{step}" for step in loc)
