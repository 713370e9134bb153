"""Lists of objects with ids: the rules of compliance, the cases of eval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyoco_server.core.packs.spec import Check
from pyoco_server.errors import Problem

__all__ = ["many"]


def many(check: Check, at_least: int, at_most: int) -> Check:
    """Return a check for a list with this many objects, whose `id`s are unique. O(n)."""

    def check_all(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
        if not isinstance(value, list):
            return (Problem(loc, "must be a list", "type"),)
        if not at_least <= len(value) <= at_most:
            return (Problem(loc, f"must have {at_least} to {at_most} items, and has {len(value)}", "length"),)
        problems = [problem for at, item in enumerate(value) for problem in check(item, (*loc, at))]
        return tuple(problems) + _repeated(value, loc)

    return check_all


def _repeated(items: Sequence[Any], loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
    seen: set[str] = set()
    problems = []
    for at, item in enumerate(items):
        name = item.get("id") if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            problems.append(Problem((*loc, at, "id"), "must differ from those of the items before it", "repeated"))
        seen.add(name)
    return tuple(problems)
