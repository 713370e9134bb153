"""Subjects and patterns: `*` matches one token, `>` matches one or more at the end."""

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
    """Return a test for literal subjects. Cached, so that patterns are not parsed for each message."""
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
    """Return whether a literal subject matches a pattern."""
    return matcher(pattern)(subject)


def overlaps(one: str, other: str) -> bool:
    """Return whether any subject matches both patterns."""
    one_tokens, other_tokens = one.split("."), other.split(".")
    for at in range(max(len(one_tokens), len(other_tokens))):
        left = one_tokens[at] if at < len(one_tokens) else None
        right = other_tokens[at] if at < len(other_tokens) else None
        if left is None or right is None:
            return False
        if ">" in (left, right):
            return True
        if "*" not in (left, right) and left != right:
            return False
    return True


def covers(wide: str, narrow: str) -> bool:
    """Return whether every subject that matches `narrow` also matches `wide`."""
    outer, inner = wide.split("."), narrow.split(".")
    for at, part in enumerate(outer):
        if part == ">":
            return len(inner) > at
        if at >= len(inner) or inner[at] == ">" or (part != "*" and part != inner[at]):
            return False
    return len(outer) == len(inner)


class SubjectTable(Generic[K, V]):
    """Values by pattern, indexed by the literal tokens at the start of each pattern."""

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
        """Yield the keys and values whose pattern matches this literal subject."""
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
    """Return the literal tokens at the start."""
    if not is_pattern(pattern):
        return pattern
    tokens = pattern.split(".")
    first = next(at for at, token in enumerate(tokens) if token in ("*", ">"))
    return ".".join(tokens[:first])
