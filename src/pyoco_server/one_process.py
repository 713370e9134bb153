"""Stores in the memory of one process, `memory://name`.

Commands refuse them: the other processes of a deployment would see empty stores.
"""

from __future__ import annotations

__all__ = ["memory_problem", "refuse_memory_stores"]

_refused = False


def refuse_memory_stores() -> None:
    """Mark this process as a command: from now on, settings that name a store in memory are refused."""
    global _refused  # noqa: PLW0603 - a fact about the process
    _refused = True


def memory_problem() -> str | None:
    """Return why a store in memory is refused, as the predicate of a sentence, or None if it is allowed."""
    if not _refused:
        return None
    return (
        "is in the memory of one process, and other processes would see an empty store: memory:// is for tests and for "
        "gateway and PyocoNatsWorker in the same process, not for commands"
    )
