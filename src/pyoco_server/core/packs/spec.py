"""What a pack may be asked: a table of members, checked before any money moves (PRICED-129)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyoco_server.core.packs.prices import RESERVATION_MIN_USD_MICROS, Prices
from pyoco_server.errors import Problem

__all__ = ["Check", "Here", "Member", "Members", "PackSpec", "choice", "flag", "is_pack_name", "text", "whole"]

#: Looks at one value, which stands at `loc`. The messages name rules, and never the value.
Check = Callable[[Any, tuple[str | int, ...]], tuple[Problem, ...]]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)


def is_pack_name(name: str) -> bool:
    """It is part of a request, of a setting and of a log line: short, and of one spelling."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class Here:
    """What the form of the inputs does not tell: who asks, and what this deployment allows."""

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
    """One pack, as gateway and worker know it. What executes it is loaded in processes of its own alone."""

    #: The `pack_type` of a submission: see `is_pack_name`.
    name: str
    #: The form of its inputs; usually `Members`.
    inputs: Callable[[object], tuple[Problem, ...]]
    #: `module:attribute` of its executor. Empty: one of ours, which `wiring/packs.py` puts together.
    executor: str = ""
    #: What else may be wrong with inputs of the right form.
    beyond: Callable[[Mapping[str, Any], Here], tuple[Problem, ...]] = _nothing_more
    #: Keys in the input bucket that valid inputs name. The worker fetches them before the timebox begins.
    files: Callable[[Mapping[str, Any]], tuple[str, ...]] = _no_files
    #: It shares no process with other packs: it is somebody else's code, or heavy.
    has_own_process: bool = True
    #: What valid inputs cost at least, in micros of a US dollar, as far as it is known before the pack is executed.
    price: Callable[[Mapping[str, Any], Prices], int] = _unknown_price

    #: What these valid inputs need of the worker beside the pack itself: names out of what workers announce for it.
    needs: Callable[[Mapping[str, Any]], tuple[str, ...]] = _no_needs
    #: The member of the inputs that `needs` are read from.
    needs_member: str | None = None

    def check(self, inputs: object, here: Here) -> tuple[Problem, ...]:
        """What is wrong with these inputs, all of it; the places are paths within them. O(size)."""
        problems = self.inputs(inputs)
        return problems if problems or not isinstance(inputs, dict) else self.beyond(inputs, here)

    def least_reservation(self, inputs: Mapping[str, Any], prices: Prices) -> int:
        """The smallest reservation that is accepted for these valid inputs, in micros of a US dollar (SAFE-1)."""
        return max(RESERVATION_MIN_USD_MICROS, self.price(inputs, prices))


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


def whole(at_least: int, at_most: int) -> Check:
    """A whole number within these bounds. `1.0` is one (JSON knows one kind of number); `true` is none."""

    def check(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or (isinstance(value, float) and not value.is_integer()):
            return (Problem(loc, "must be a whole number", "type"),)
        if at_least <= value <= at_most:
            return ()
        return (Problem(loc, f"must be between {at_least} and {at_most}", "range"),)

    return check


def flag(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
    """True or false."""
    return () if isinstance(value, bool) else (Problem(loc, "must be true or false", "type"),)
