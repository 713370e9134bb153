"""Authorization: the one place where every door checks the ACL (GRID-168).

All checks read memory that a watch keeps current. They are cheap enough to repeat for every job, and a change takes
effect immediately, also for clients and workers that are already connected.
"""

from __future__ import annotations

from pyoco_server.actions.authenticate import NOBODY
from pyoco_server.core.programs.admission import allowed_cap, check_client, check_worker, matches_any
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.run import Caller
from pyoco_server.ports.programs import Programs

__all__ = [
    "admit_client",
    "admit_key_of_operator",
    "admit_operator",
    "admit_worker",
    "effective_cap",
    "holds_worker",
    "is_operator",
    "may_run",
]


def admit_client(programs: Programs, caller: Caller, client_id: str, exec_name: str | None, group: str) -> None:
    """Check that `caller` may act as this client and submit this program in this group. `exec_name` None: Hello only.

    Raises GridRefused(FORBIDDEN).
    """
    grant = programs.acl.find("client", client_id)
    check_client(grant, caller.api_key_id, exec_name, group, by_key=_by_key(programs))


def admit_worker(programs: Programs, caller: Caller, worker_id: str) -> None:
    """Check that `caller` may act as this worker. Raises GridRefused(FORBIDDEN)."""
    check_worker(programs.acl.find("worker", worker_id), caller.api_key_id, by_key=_by_key(programs))


def holds_worker(programs: Programs, caller: Caller, worker_id: str) -> bool:
    """Return whether this worker's ACL record lists the caller's key.

    If so, an operator has allowed it to run programs of every tenant.
    """
    grant = programs.acl.find("worker", worker_id)
    return grant is not None and caller.api_key_id is not None and caller.api_key_id in grant.api_key_ids


def may_run(programs: Programs, worker_id: str, exec_name: str) -> bool:
    """Return whether a connected worker may run this program, whatever its patterns. Check before each assignment."""
    grant = programs.acl.find("worker", worker_id)
    return not _by_key(programs) if grant is None else matches_any(grant.execs, exec_name)


def effective_cap(programs: Programs, client_id: str, desired: int) -> int:
    """Return the cap granted to this client when it requests `desired` (at least 1)."""
    return allowed_cap(programs.acl.find("client", client_id), desired)


def is_operator(programs: Programs, caller: Caller) -> bool:
    """Return whether `caller` is an operator: EXEC_OPERATOR_KEYS lists its key, or authentication is off."""
    return caller == NOBODY or caller.api_key_id in programs.config.exec_operator_keys


def admit_operator(programs: Programs, caller: Caller) -> None:
    """Check that `caller` is an operator. Raises GridRefused(FORBIDDEN)."""
    if not is_operator(programs, caller):
        raise GridRefused(Code.FORBIDDEN, "this needs an operator's key: EXEC_OPERATOR_KEYS names them")


def admit_key_of_operator(programs: Programs, caller: Caller) -> None:
    """Check that `caller` has an operator's key, in every mode of authentication: for access to another tenant's data.

    Raises GridRefused(FORBIDDEN).
    """
    if caller.api_key_id not in programs.config.exec_operator_keys:
        raise GridRefused(Code.FORBIDDEN, "this needs an operator's key: EXEC_OPERATOR_KEYS names them")


def _by_key(programs: Programs) -> bool:
    return programs.config.exec_auth == "api_key"
