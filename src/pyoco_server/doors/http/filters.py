"""Types of values that several queries and bodies filter by."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.names import read_job_id
from pyoco_server.doors.http.requests import NOT_AN_INSTANT, read_instant
from pyoco_server.doors.http.shapes import pattern

__all__ = ["ClientId", "ExecName", "Group", "JobId", "RunIdPrefix", "Sha256", "UnixSeconds"]

_PROGRAM_RULE = "must be the name of a program: letters, digits, '_' and '-'"


def _job_id(text: str, _: object) -> str:
    try:
        return read_job_id(text)
    except GridRefused as error:
        raise ValueError(error.message) from error


def _unix_seconds(text: str, _: object) -> float | None:
    return read_instant(text)


#: An id that every job may have been given; it is compared in its canonical form.
JobId = Annotated[str, Meta(extra={"read": _job_id}, extra_json_schema={"format": "uuid"})]
UnixSeconds = Annotated[float, Meta(ge=0, extra={"read": _unix_seconds, "rule": NOT_AN_INSTANT})]
ClientId = Annotated[str, pattern("^[A-Za-z0-9_-]{1,64}$", "must be 1 to 64 letters, digits, '_' or '-'")]
Group = Annotated[str, pattern("^[A-Za-z0-9_-]{1,32}$", "must be 1 to 32 letters, digits, '_' or '-'")]
ExecName = Annotated[str, pattern("^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$", _PROGRAM_RULE)]
Sha256 = Annotated[str, pattern("^[0-9a-fA-F]{64}$", "must be 64 hex digits")]
#: Fewer characters would hardly filter anything.
RunIdPrefix = Annotated[str, pattern("^[0-9a-fA-F-]{4,36}$", "must be the first 4 to 36 characters of a run id")]
