"""Chooses the group of a job: by rules and ACL first, then by policy (GRID-136)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from pyoco_server.client.frames.group import Group
from pyoco_server.client.frames.shares import Turn
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.doors.frames.guard import Visitor
from pyoco_server.doors.frames.router.plan import DENY

if TYPE_CHECKING:
    from pyoco_server.doors.frames.router.router import RouterContext

__all__ = ["Choice"]


class Choice:
    """The choice for one connection: its groups, by their names in the plan."""

    def __init__(self, context: RouterContext, groups: Turn[Group], refusals: Mapping[Group, GridRefused]) -> None:
        """`refusals`: groups that refuse this client, and why."""
        self._context, self._groups, self._refusals = context, groups, refusals
        self._by_name: dict[str, Group] = {}
        self._names: dict[Group, str] = {}

    def name(self, group: Group, name: str) -> None:
        self._by_name[name], self._names[group] = group, name

    def name_of(self, group: Group) -> str:
        return self._names[group]

    def group(self, name: str) -> Group | None:
        return self._by_name.get(name)

    def candidates(self, visitor: Visitor, exec_name: str) -> Set[Group]:
        """Return the groups that rules and ACL permit, reachable or not. Raises GridRefused: FORBIDDEN."""
        target = self._context.plan.target(exec_name, visitor.id)
        if target == DENY:
            raise GridRefused(Code.FORBIDDEN, "this router does not take such a job")
        found: set[Group] = set()
        refusal: GridRefused | None = None
        for name in self._by_name if target is None else (target,):
            try:
                self._context.guard_of(name).check_ask(visitor, exec_name)
            except GridRefused as error:
                refusal = error
            else:
                found.add(self._by_name[name])
        if refusal is not None and not found:
            raise refusal
        return found

    def choose(self, candidates: Set[Group]) -> Group | None:
        """Choose one of the reachable candidates by policy. None: no candidate is reachable. O(groups)."""
        by_load = self._context.plan.policy == "least"
        return self._groups.choose(
            lambda group: group.is_live and group in candidates,
            lambda group: len(group.table) if by_load else 0,
        )

    def why_not(self, candidates: Set[Group]) -> GridRefused:
        """Return why no candidate is reachable: they refuse this client, or are unavailable now."""
        refusals = [self._refusals[group] for group in candidates if group in self._refusals]
        if refusals and len(refusals) == len(candidates):
            return GridRefused(refusals[0].code, refusals[0].message)
        return GridRefused(Code.UNAVAILABLE, "none of the groups can be reached just now")
