"""Let somebody in, or not: the one place where every door asks what the ACL says (GRID-168).

All of it is read from memory that a watch keeps true, so it costs nothing to ask again for every job, and a change
acts at once on clients and workers that are connected already.
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
    """Whether `caller` may be this client and ask for this program there; `exec_name` None: only say Hello.

    Raises GridRefused(FORBIDDEN).
    """
    grant = programs.acl.find("client", client_id)
    check_client(grant, caller.api_key_id, exec_name, group, by_key=_by_key(programs))


def admit_worker(programs: Programs, caller: Caller, worker_id: str) -> None:
    """Whether `caller` may be this worker. Raises GridRefused(FORBIDDEN)."""
    check_worker(programs.acl.find("worker", worker_id), caller.api_key_id, by_key=_by_key(programs))


def holds_worker(programs: Programs, caller: Caller, worker_id: str) -> bool:
    """Whether an ACL record of this worker names the caller's key: an operator lets it run programs of every tenant."""
    grant = programs.acl.find("worker", worker_id)
    return grant is not None and caller.api_key_id is not None and caller.api_key_id in grant.api_key_ids


def may_run(programs: Programs, worker_id: str, exec_name: str) -> bool:
    """Whether a worker that was let in may be given this program, whatever its pattern. Ask for each assignment."""
    grant = programs.acl.find("worker", worker_id)
    return not _by_key(programs) if grant is None else matches_any(grant.execs, exec_name)


def effective_cap(programs: Programs, client_id: str, desired: int) -> int:
    """How many jobs at once this client gets when it asks for `desired` (at least 1)."""
    return allowed_cap(programs.acl.find("client", client_id), desired)


def is_operator(programs: Programs, caller: Caller) -> bool:
    """Whether `caller` looks after the grid: a key that EXEC_OPERATOR_KEYS names; without authentication, everybody."""
    return caller == NOBODY or caller.api_key_id in programs.config.exec_operator_keys


def admit_operator(programs: Programs, caller: Caller) -> None:
    """Raises GridRefused(FORBIDDEN)."""
    if not is_operator(programs, caller):
        raise GridRefused(Code.FORBIDDEN, "this needs an operator's key: EXEC_OPERATOR_KEYS names them")


def admit_key_of_operator(programs: Programs, caller: Caller) -> None:
    """The same, and a caller without a key is refused in every mode: for what belongs to another tenant.

    Raises GridRefused(FORBIDDEN).
    """
    if caller.api_key_id not in programs.config.exec_operator_keys:
        raise GridRefused(Code.FORBIDDEN, "this needs an operator's key: EXEC_OPERATOR_KEYS names them")


def _by_key(programs: Programs) -> bool:
    return programs.config.exec_auth == "api_key"
