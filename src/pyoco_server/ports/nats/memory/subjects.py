"""Subjects and the patterns that match them: `*` stands for one token, `>` for one or more at the end."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["is_pattern", "matches", "overlaps"]


def is_pattern(subject: str) -> bool:
    return "*" in subject or ">" in subject


@lru_cache(maxsize=65_536)
def matches(pattern: str, subject: str) -> bool:
    """Whether a literal subject falls under a pattern."""
    if pattern in (subject, ">"):
        return True
    if not is_pattern(pattern):
        return False
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(one in ("*", other) for one, other in zip(wanted, tokens, strict=True))


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
