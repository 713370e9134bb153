"""What a pack may be asked: a table of members, checked before any money moves (PRICED-129)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyoco_server.errors import Problem

__all__ = ["Check", "Member", "Members", "PackSpec", "choice", "text"]

#: Looks at one value, which stands at `loc`. The messages name rules, and never the value.
Check = Callable[[Any, tuple[str | int, ...]], tuple[Problem, ...]]


@dataclass(frozen=True)
class PackSpec:
    """One pack, as the gateway knows it."""

    name: str
    #: What is wrong with these inputs, all of it; the places are paths within them. O(size).
    check: Callable[[object], tuple[Problem, ...]]


@dataclass(frozen=True)
class Member:
    """One member of an object."""

    check: Check
    is_required: bool = False


@dataclass(frozen=True)
class Members:
    """An object with exactly these members, some of which may be left out."""

    members: Mapping[str, Member]

    def __call__(self, value: object, loc: tuple[str | int, ...] = ()) -> tuple[Problem, ...]:
        if not isinstance(value, dict):
            return (Problem(loc, "must be an object", "type"),)
        problems = [
            Problem((*loc, name), "is required", "missing")
            for name, member in self.members.items()
            if member.is_required and name not in value
        ]
        for name, given in value.items():
            if name in self.members:
                problems.extend(self.members[name].check(given, (*loc, name)))
        # A stranger's name is a value, too: it says how many there are and not which (PRICED-171).
        strangers = sum(name not in self.members for name in value)
        if strangers:
            known = ", ".join(self.members)
            problems.append(Problem(loc, f"has {strangers} unknown member(s); it may have: {known}", "unknown"))
        return tuple(problems)


def text(at_least: int, at_most: int) -> Check:
    """A string of so many characters."""

    def check(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
        if not isinstance(value, str):
            return (Problem(loc, "must be a string", "type"),)
        if at_least <= len(value) <= at_most:
            return ()
        return (Problem(loc, f"must have {at_least} to {at_most} characters, and has {len(value)}", "length"),)

    return check


def choice(words: Sequence[str]) -> Check:
    """One of these strings."""

    def check(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
        if isinstance(value, str) and value in words:
            return ()
        return (Problem(loc, f"must be one of: {', '.join(words)}", "value"),)

    return check
