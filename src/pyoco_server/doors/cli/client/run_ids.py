"""Completes the first characters of a run id to the id (CLI-7)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyoco_server.errors import RunNotFound, UsageError

if TYPE_CHECKING:
    from pyoco_server.http_client import PyocoHttpClient

__all__ = ["full_run_id", "maybe_full_run_id"]

#: A full id is longer.
_PREFIX = re.compile(r"[0-9a-fA-F-]{4,35}", re.ASCII)
_LISTED_MAX = 10


def full_run_id(client: PyocoHttpClient, text: str) -> str:
    """Return the only run id that begins with `text`. Costs a request unless `text` is a full id, or cannot be the
    beginning of one: then it is returned unchanged.

    The gateway searches its index, and finds only runs that the caller may see. Raises RunNotFound; and UsageError if
    several runs match.
    """
    if _PREFIX.fullmatch(text) is None:
        return text
    found = client.list_runs_vnext(run_id=text, limit=_LISTED_MAX + 1)["items"]
    if not found:
        raise RunNotFound(f"no run id begins with {text!r}; to list runs: pyoco-client list")
    if len(found) > 1:
        error = UsageError(f"several run ids begin with {text!r}: give more of its characters")
        for run in found[:_LISTED_MAX]:
            error.add_note(f"  {run['run_id']}  {run['status']}  {run.get('flow_name', '')}")
        if len(found) > _LISTED_MAX:
            error.add_note("  …")
        raise error
    return found[0]["run_id"]


def maybe_full_run_id(client: PyocoHttpClient, text: str | None) -> str | None:
    return None if text is None else full_run_id(client, text)
