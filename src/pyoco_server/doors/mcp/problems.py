"""Problem documents for errors found before the request is sent: the same members as the server's (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyoco_server.core.priced.reasons import HTTP_STATUS, Reason, problem_type, title_of
from pyoco_server.errors import Problem

__all__ = ["FLOWS", "INPUTS", "RUNS", "ArgumentsRefused", "RunUnknown", "problem", "problem_of", "refusal"]

#: Path for submitting runs.
RUNS = "/v1/runs"
#: Path of runs of all kinds.
FLOWS = "/runs"
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


def problem_of(document: dict[str, Any], status: int, trace_id: str, instance: str) -> dict[str, Any] | None:
    """Translate the error document of a route outside `/v1`. None: it is not one."""
    if not isinstance(document.get("err_id"), str) or not isinstance(document.get("message"), str):
        return None
    reason = _REASONS.get(status, Reason.DEPENDENCY_UNAVAILABLE if status >= 500 else Reason.VALIDATION_FAILED)
    found = problem(reason, document["message"], trace_id, instance)
    return found | {"status": status, "err_id": document["err_id"]}


#: By the status of the response. There is no other code for a key that may not read runs.
_REASONS = {
    401: Reason.AUTH_INVALID,
    403: Reason.AUTH_INVALID,
    404: Reason.RUN_NOT_FOUND,
    429: Reason.RATE_LIMITED,
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
