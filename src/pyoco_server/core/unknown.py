"""Refusal of unknown members: JSON members, form parts and query parameters that an operation does not know."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import SequenceMatcher

from pyoco_server.errors import Problem

__all__ = ["UNKNOWN_MAX", "nearest_of", "unknown_member", "unknown_members"]

#: Problems listed in one response. A body of a megabyte could have a hundred thousand unknown members.
UNKNOWN_MAX = 100
#: The comparison takes time quadratic in the length, and no known name is nearly as long.
_COMPARED_LENGTH_MAX = 64
#: Longer names are cut where they are repeated.
_SHOWN_LENGTH_MAX = 128
_SIMILARITY_MIN = 0.6


def unknown_members(place: tuple[str | int, ...], given: Iterable[str], known: Collection[str]) -> list[Problem]:
    """Return one problem for each name that is not known, at most UNKNOWN_MAX (STRICT-1, STRICT-4)."""
    problems: list[Problem] = []
    for name in given:
        if name not in known and len(problems) < UNKNOWN_MAX:
            problems.append(unknown_member(place, name, known))
    return problems


def unknown_member(place: tuple[str | int, ...], name: str, known: Collection[str]) -> Problem:
    nearest = nearest_of(name, known)
    if nearest is not None:
        message = f"is unknown; did you mean {nearest}?"
    elif known:
        message = f"is unknown; there may be: {', '.join(known)}"
    else:
        message = "is unknown; nothing is accepted here"
    return Problem((*place, name[:_SHOWN_LENGTH_MAX]), message, "unknown_member", nearest)


def nearest_of(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, the first by name of equally similar ones; None if none is similar
    (STRICT-5)."""
    if len(name) > _COMPARED_LENGTH_MAX:
        return None
    given, best, most = name.lower(), None, 0.0
    for each in sorted(known):
        ratio = SequenceMatcher(None, given, each.lower()).ratio()
        if ratio >= _SIMILARITY_MIN and ratio > most:
            best, most = each, ratio
    return best
