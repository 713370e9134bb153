"""Who may come in, and stay (section 22). The one place of this door where that is decided."""

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
    """Who is at the other end, as far as it was proved."""

    role: Role
    id: str
    caller: Caller


class Guard:
    """Keys through the same check as HTTP's, ACL records from memory: an answer costs microseconds.

    A door guards one group. A router guards several: whoever may use one of them may come in.
    """

    def __init__(self, backend: DoorBackend, programs: Programs, group: str, *others: str) -> None:
        self._backend, self._programs, self._groups = backend, programs, (*others, group)

    async def admit(self, role: Role, of: str, key: str | None, certificate_name: str | None) -> Visitor:
        """Raises GridRefused: UNAUTHENTICATED (which of the ways a key is wrong is not told) or FORBIDDEN; and
        Unavailable while nobody knows whether the key still opens."""
        if self._programs.config.exec_tls_bind_cn and certificate_name != of:
            raise GridRefused(Code.FORBIDDEN, "the certificate bears another name")
        visitor = Visitor(role, of, await self._caller(key))
        self._check(visitor)
        return visitor

    async def _caller(self, key: str | None) -> Caller:
        """In mode `none` no key is needed, and a valid one counts, as over HTTP (SAFE-5)."""
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
        """Raises GridRefused: FORBIDDEN."""
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
        """Whether a client's own run may be shown to it: a run of exactly its tenant, and one without a tenant only to
        a client without a key (SAFE-4)."""
        return run.tenant_id == visitor.caller.tenant_id

    def may_handle(self, visitor: Visitor, tenant: str | None) -> bool:
        """Whether a worker may have runs of this tenant (`tenant_token`): without a key none that have a tenant; with
        one those of its own tenant, and those of others if an ACL record of this worker names the key (SAFE-4)."""
        if tenant is None:
            return True
        tenants = self.tenants_of(visitor)
        return tenants is None or tenant in tenants

    def tenants_of(self, visitor: Visitor) -> tuple[str, ...] | None:
        """The tenants whose runs a worker may have. None: every tenant."""
        caller = visitor.caller
        if caller.tenant_id is None or caller.api_key_id is None:
            return ()
        return None if holds_worker(self._programs, caller, visitor.id) else (tenant_token(caller.tenant_id),)

    def may_run(self, worker_id: str, exec_name: str) -> bool:
        return may_run(self._programs, worker_id, exec_name)

    async def still_welcome(self, visitor: Visitor) -> bool:
        """Whether the key still opens and the ACL still knows it (GRID-167). Raises Unavailable."""
        if visitor.caller.api_key_id is None:
            return True
        try:
            self._check(visitor)
        except GridRefused:
            return False
        return await still_opens(self._backend, visitor.caller.api_key_id)
