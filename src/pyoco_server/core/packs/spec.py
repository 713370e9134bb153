"""The inputs of a pack: a table of members, validated before any money moves (PRICED-129)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyoco_server.core.packs.prices import RESERVATION_MIN_USD_MICROS, Prices
from pyoco_server.errors import Problem

__all__ = [
    "Check",
    "Here",
    "Member",
    "Members",
    "PackCheckFailed",
    "PackSpec",
    "choice",
    "flag",
    "is_pack_name",
    "text",
    "whole",
]

#: Checks one value at the position `loc`. The messages name rules, never the value.
Check = Callable[[Any, tuple[str | int, ...]], tuple[Problem, ...]]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)


class PackCheckFailed(RuntimeError):
    """A function of a third-party spec raised an error, or returned something of another type."""


def is_pack_name(name: str) -> bool:
    """Return whether it is valid as part of a request, a setting and a log line: short, with only one spelling."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class Here:
    """The context for checks beyond the form of the inputs: the tenant, and what this deployment allows."""

    tenant_id: str
    input_bucket: str
    allow_http: bool = False


def _nothing_more(_: Mapping[str, Any], __: Here) -> tuple[Problem, ...]:
    return ()


def _no_files(_: Mapping[str, Any]) -> tuple[str, ...]:
    return ()


def _no_needs(_: Mapping[str, Any]) -> tuple[str, ...]:
    return ()


def _unknown_price(_: Mapping[str, Any], __: Prices) -> int:
    return 0


@dataclass(frozen=True, kw_only=True)
class PackSpec:
    """One pack, as gateway and worker use it. The code that executes it is loaded only in separate processes."""

    #: The `pack_type` of a submission: see `is_pack_name`.
    name: str
    #: Checks the form of its inputs; usually `Members`.
    inputs: Callable[[object], tuple[Problem, ...]]
    #: `module:attribute` of its executor. Empty: a built-in pack, assembled in `wiring/packs.py`.
    executor: str = ""
    #: Further checks, for inputs of valid form.
    beyond: Callable[[Mapping[str, Any], Here], tuple[Problem, ...]] = _nothing_more
    #: Returns the keys in the input bucket that valid inputs name. The worker fetches them before the timebox begins.
    files: Callable[[Mapping[str, Any]], tuple[str, ...]] = _no_files
    #: It shares no process with other packs, because it is third-party code or needs many resources.
    has_own_process: bool = True
    #: Returns the minimum cost of valid inputs, in micros of a US dollar, as far as it is known before execution.
    price: Callable[[Mapping[str, Any], Prices], int] = _unknown_price

    #: Returns what valid inputs require of the worker besides the pack itself: options that workers announce for it.
    needs: Callable[[Mapping[str, Any]], tuple[str, ...]] = _no_needs
    #: The member of the inputs that determines `needs`.
    needs_member: str | None = None

    def check(self, inputs: object, here: Here) -> tuple[Problem, ...]:
        """Return all problems of these inputs; the locations are paths within them. O(size)."""
        problems = self.inputs(inputs)
        return problems if problems or not isinstance(inputs, dict) else self.beyond(inputs, here)

    def least_reservation(self, inputs: Mapping[str, Any], prices: Prices) -> int:
        """Return the smallest accepted reservation for these valid inputs, in micros of a US dollar (SAFE-1)."""
        return max(RESERVATION_MIN_USD_MICROS, self.price(inputs, prices))


@dataclass(frozen=True)
class Member:
    """One member of an object."""

    check: Check
    is_required: bool = False


@dataclass(frozen=True)
class Members:
    """An object with exactly these members; some are optional."""

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
        # The name of an unknown member is a value, too: the message gives their number, not the names (PRICED-171).
        unknown = sum(name not in self.members for name in value)
        if unknown:
            known = ", ".join(self.members)
            problems.append(Problem(loc, f"has {unknown} unknown member(s); it may have: {known}", "unknown"))
        return tuple(problems)


def text(at_least: int, at_most: int) -> Check:
    """Return a check for a string of this many characters."""

    def check(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
        if not isinstance(value, str):
            return (Problem(loc, "must be a string", "type"),)
        if at_least <= len(value) <= at_most:
            return ()
        return (Problem(loc, f"must have {at_least} to {at_most} characters, and has {len(value)}", "length"),)

    return check


def choice(words: Sequence[str]) -> Check:
    """Return a check for one of these strings."""

    def check(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
        if isinstance(value, str) and value in words:
            return ()
        return (Problem(loc, f"must be one of: {', '.join(words)}", "value"),)

    return check


def whole(at_least: int, at_most: int) -> Check:
    """Return a check for a whole number in this range. `1.0` is valid (JSON has a single number type); `true` is
    not."""

    def check(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or (isinstance(value, float) and not value.is_integer()):
            return (Problem(loc, "must be a whole number", "type"),)
        if at_least <= value <= at_most:
            return ()
        return (Problem(loc, f"must be between {at_least} and {at_most}", "range"),)

    return check


def flag(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
    """Check for true or false."""
    return () if isinstance(value, bool) else (Problem(loc, "must be true or false", "type"),)
