"""Subjects and the patterns that match them: `*` stands for one token, `>` for one or more at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

__all__ = ["SubjectTable", "covers", "is_pattern", "matcher", "matches", "overlaps"]

K = TypeVar("K")
V = TypeVar("V")


def is_pattern(subject: str) -> bool:
    return "*" in subject or ">" in subject


@lru_cache(maxsize=4096)
def matcher(pattern: str) -> Callable[[str], bool]:
    """A test for literal subjects. One per pattern, so that nothing is parsed again for each message."""
    if pattern == ">":
        return lambda subject: True
    if not is_pattern(pattern):
        return pattern.__eq__
    head, is_open = (pattern[:-1], True) if pattern.endswith(".>") else (pattern, False)
    if is_open and "*" not in head:
        return lambda subject: subject.startswith(head) and len(subject) > len(head)
    wanted = head.rstrip(".").split(".")

    def test(subject: str) -> bool:
        tokens = subject.split(".")
        if len(tokens) <= len(wanted) if is_open else len(tokens) != len(wanted):
            return False
        return all(one in ("*", other) for one, other in zip(wanted, tokens, strict=False))

    return test


def matches(pattern: str, subject: str) -> bool:
    """Whether a literal subject falls under a pattern."""
    return matcher(pattern)(subject)


def overlaps(one: str, other: str) -> bool:
    """Whether some subject falls under both patterns."""
    mine, theirs = one.split("."), other.split(".")
    for at in range(max(len(mine), len(theirs))):
        left = mine[at] if at < len(mine) else None
        right = theirs[at] if at < len(theirs) else None
        if left is None or right is None:
            return False
        if ">" in (left, right):
            return True
        if "*" not in (left, right) and left != right:
            return False
    return True


def covers(wide: str, narrow: str) -> bool:
    """Whether every subject under `narrow` also falls under `wide`."""
    outer, inner = wide.split("."), narrow.split(".")
    for at, word in enumerate(outer):
        if word == ">":
            return len(inner) > at
        if at >= len(inner) or inner[at] == ">" or (word != "*" and word != inner[at]):
            return False
    return len(outer) == len(inner)


class SubjectTable(Generic[K, V]):
    """Values by pattern, found by the literal tokens that each pattern begins with."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, dict[str, dict[K, V]]] = {}

    def add(self, pattern: str, key: K, value: V) -> None:
        self._by_prefix.setdefault(_prefix(pattern), {}).setdefault(pattern, {})[key] = value

    def remove(self, pattern: str, key: K) -> None:
        prefix = _prefix(pattern)
        patterns = self._by_prefix.get(prefix, {})
        values = patterns.get(pattern, {})
        values.pop(key, None)
        if not values:
            patterns.pop(pattern, None)
        if not patterns:
            self._by_prefix.pop(prefix, None)

    def find(self, subject: str) -> Iterator[tuple[K, V]]:
        """Everything whose pattern matches this literal subject."""
        end = len(subject)
        while end >= 0:
            for pattern, values in self._by_prefix.get(subject[:end], {}).items():
                if matches(pattern, subject):
                    yield from values.items()
            if not end:
                return
            end = max(0, subject.rfind(".", 0, end))

    def has(self, subject: str) -> bool:
        return next(self.find(subject), None) is not None


def _prefix(pattern: str) -> str:
    """The literal tokens at the beginning."""
    if not is_pattern(pattern):
        return pattern
    tokens = pattern.split(".")
    first = next(at for at, token in enumerate(tokens) if token in ("*", ">"))
    return ".".join(tokens[:first])
