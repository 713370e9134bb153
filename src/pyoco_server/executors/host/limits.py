"""How much memory a host may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["memory_bytes"]


def memory_bytes() -> int:
    """Memory this process may use: the machine's, or its cgroup's limit if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # not Linux, or no limit ("max")
            total = min(total, int(Path(limit).read_text()))
    return total
