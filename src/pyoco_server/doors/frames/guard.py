"""Authentication and authorization (section 22): the one place where a door decides on access."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

from pyoco_server.actions.authenticate import NOBODY, authenticate_key, still_opens
from pyoco_server.actions.programs.admit import admit_client, admit_worker, holds_worker, may_run
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import tenant_token
from pyoco_server.core.run import Caller, Run
from pyoco_server.errors import KeyMissing, KeyRefused
from pyoco_server.ports.backend import DoorBackend
from pyoco_server.ports.programs import Programs

__all__ = ["Guard", "Visitor"]

Role = Literal["client", "worker"]


@dataclass(frozen=True)
class Visitor:
    """The peer of a connection, as far as it is authenticated."""

    role: Role
    id: str
    caller: Caller


class Guard:
    """Checks keys in the same way as HTTP, and ACL records from memory: a check costs microseconds.

    A door guards one group. A router guards several: a client that may use one of them may connect.
    """

    def __init__(self, backend: DoorBackend, programs: Programs, group: str, *others: str) -> None:
        self._backend, self._programs, self._groups = backend, programs, (*others, group)

    async def admit(self, role: Role, of: str, key: str | None, certificate_name: str | None) -> Visitor:
        """Authenticate and authorize a peer.

        Raises GridRefused: UNAUTHENTICATED (without telling why a key is invalid) or FORBIDDEN; Unavailable while it is
        unknown whether the key is still valid.
        """
        if self._programs.config.exec_tls_bind_cn and certificate_name != of:
            raise GridRefused(Code.FORBIDDEN, "the certificate bears another name")
        visitor = Visitor(role, of, await self._caller(key))
        self._check(visitor)
        return visitor

    async def _caller(self, key: str | None) -> Caller:
        """Return the caller of a key. In mode `none` a key is optional; a valid one counts, as over HTTP (SAFE-5)."""
        is_open = self._programs.config.exec_auth == "none"
        if is_open and not key:
            return NOBODY
        try:
            return await authenticate_key(self._backend, key)
        except (KeyMissing, KeyRefused):
            if is_open:
                return NOBODY
            raise GridRefused(Code.UNAUTHENTICATED, "an API key that opens this door is needed") from None

    def _check(self, visitor: Visitor) -> None:
        if visitor.role == "client":
            self._check_client(visitor, None)
        else:
            admit_worker(self._programs, visitor.caller, visitor.id)

    def check_ask(self, visitor: Visitor, exec_name: str) -> None:
        """Check that this client may submit the program. Raises GridRefused: FORBIDDEN."""
        self._check_client(visitor, exec_name)

    def _check_client(self, visitor: Visitor, exec_name: str | None) -> None:
        *others, group = self._groups
        for other in others:
            with contextlib.suppress(GridRefused):
                admit_client(self._programs, visitor.caller, visitor.id, exec_name, other)
                return
        admit_client(self._programs, visitor.caller, visitor.id, exec_name, group)

    @staticmethod
    def may_see(visitor: Visitor, run: Run) -> bool:
        """Return whether a client may see a run of its own: only one of exactly its tenant (SAFE-4).

        A run without a tenant is visible only to a client without a key.
        """
        return run.tenant_id == visitor.caller.tenant_id

    def may_handle(self, visitor: Visitor, tenant: str | None) -> bool:
        """Return whether a worker may run jobs of this tenant (`tenant_token`), following SAFE-4.

        Without a key: only jobs without a tenant. With a key: also those of its own tenant, and of all tenants if an
        ACL record of this worker lists the key.
        """
        if tenant is None:
            return True
        tenants = self.tenants_of(visitor)
        return tenants is None or tenant in tenants

    def tenants_of(self, visitor: Visitor) -> tuple[str, ...] | None:
        """Return the tenants whose jobs a worker may run. None: every tenant."""
        caller = visitor.caller
        if caller.tenant_id is None or caller.api_key_id is None:
            return ()
        return None if holds_worker(self._programs, caller, visitor.id) else (tenant_token(caller.tenant_id),)

    def may_run(self, worker_id: str, exec_name: str) -> bool:
        return may_run(self._programs, worker_id, exec_name)

    async def still_welcome(self, visitor: Visitor) -> bool:
        """Return whether the key is still valid and the ACL still admits the peer (GRID-167). Raises Unavailable."""
        if visitor.caller.api_key_id is None:
            return True
        try:
            self._check(visitor)
        except GridRefused:
            return False
        return await still_opens(self._backend, visitor.caller.api_key_id)
