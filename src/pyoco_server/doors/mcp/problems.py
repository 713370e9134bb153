"""Problem documents for errors found before the request is sent: the same members as the server's (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyoco_server.core.priced.reasons import HTTP_STATUS, Reason, problem_type, title_of
from pyoco_server.errors import Problem

__all__ = ["INPUTS", "RUNS", "ArgumentsRefused", "RunUnknown", "problem", "refusal"]

#: Path for submitting runs.
RUNS = "/v1/runs"
#: Path for uploading files.
INPUTS = "/v1/inputs"

#: More problems than this would not help the reader.
_PROBLEMS_MAX = 20


class ArgumentsRefused(Exception):
    """The arguments of a tool are invalid; nothing was sent."""

    def __init__(self, problems: Iterable[Problem], path: str = RUNS) -> None:
        super().__init__("the arguments are not valid")
        self.problems, self.path = tuple(problems), path


class RunUnknown(Exception):
    """The id is not a possible run id; nothing was sent."""

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
    """Render the problems of the arguments and their locations, never the values."""
    document = problem(
        Reason.VALIDATION_FAILED, "The arguments are not valid. Nothing was submitted.", trace_id, error.path
    )
    document["errors"] = [
        {"pointer": _pointer(each.loc), "message": each.msg} for each in error.problems[:_PROBLEMS_MAX]
    ]
    return document


def _pointer(loc: tuple[str | int, ...]) -> str:
    """No escaping is needed (RFC 6901): every name is ours or contains safe characters only."""
    return "".join(f"/{step}" for step in loc)
