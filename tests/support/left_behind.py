"""Who is still there after something should have ended."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

__all__ = ["standing_in"]


def standing_in(folder: Path) -> list[str]:
    """Processes that name it: nodes in their options, the others in their variables."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(f"{process.pid} {words[:3]}")
    return found
