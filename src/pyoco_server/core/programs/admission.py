"""Access rules for programs: which clients may submit them, which workers may run them, and the caps (section 22)."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Protocol

from pyoco_server.core.programs.faults import Code, GridRefused

__all__ = ["CAP_MAX", "Grant", "allowed_cap", "check_client", "check_worker", "matches_any"]

#: GRID-71: the upper limit of a client's cap, in concurrent jobs.
CAP_MAX = 10_000

#: One text for "no such record" and "not allowed with this key", so that unauthorized callers cannot probe for ids
#: (GRID-169).
_NOT_YOURS = "this id is not open to this key"


class Grant(Protocol):
    """The fields of an ACL record (`ports/acl/port.py`)."""

    @property
    def api_key_ids(self) -> tuple[str, ...]: ...

    @property
    def execs(self) -> tuple[str, ...]: ...

    @property
    def max_cap(self) -> int | None: ...

    @property
    def groups(self) -> tuple[str, ...]: ...


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Return whether the name matches one of these case-sensitive globs. O(patterns)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_client(grant: Grant | None, key_id: str | None, exec_name: str | None, group: str, *, by_key: bool) -> None:
    """Check that a client's ACL record permits this program in this group. `exec_name` None: check only the Hello.

    With `by_key` (EXEC_AUTH=api_key), a record must exist and list the key. Otherwise clients are authenticated by
    other means or not at all: without a record everything is permitted, and an existing record still restricts
    (GRID-168).

    Raises GridRefused(FORBIDDEN).
    """
    _check_holder(grant, key_id, by_key=by_key)
    if grant is None:
        return
    if not matches_any(grant.groups, group):
        raise GridRefused(Code.FORBIDDEN, "this client may not use this group")
    if exec_name is not None and not matches_any(grant.execs, exec_name):
        raise GridRefused(Code.FORBIDDEN, "this client may not ask for this program")


def check_worker(grant: Grant | None, key_id: str | None, *, by_key: bool) -> None:
    """Check that a worker may connect. Raises GridRefused(FORBIDDEN)."""
    _check_holder(grant, key_id, by_key=by_key)


def _check_holder(grant: Grant | None, key_id: str | None, *, by_key: bool) -> None:
    if by_key and (grant is None or key_id is None or key_id not in grant.api_key_ids):
        raise GridRefused(Code.FORBIDDEN, _NOT_YOURS)


def allowed_cap(grant: Grant | None, desired: int) -> int:
    """Return the cap granted to a client that requests `desired` (at least 1): lowered, never refused (GRID-168)."""
    most = CAP_MAX if grant is None or grant.max_cap is None else min(grant.max_cap, CAP_MAX)
    return min(desired, most)
