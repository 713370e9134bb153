"""Stores in the memory of one process, `memory://name`. A command has processes beside it that would see empty ones."""

from __future__ import annotations

__all__ = ["memory_problem", "refuse_memory_stores"]

_refused = False


def refuse_memory_stores() -> None:
    """This process is a command: settings that name a store in memory are refused from now on."""
    global _refused  # noqa: PLW0603 - a fact about the process
    _refused = True


def memory_problem() -> str | None:
    """What is wrong with a store in memory, as half a sentence."""
    if not _refused:
        return None
    return (
        "is in the memory of one process, and other processes would see an empty store: memory:// is for tests and for "
        "gateway and PyocoNatsWorker in the same process, not for commands"
    )
