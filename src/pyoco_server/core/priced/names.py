"""Valid tenant ids of the ledger: an id is part of object keys and cache keys."""

from __future__ import annotations

import re

__all__ = ["is_tenant"]

_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def is_tenant(text: str) -> bool:
    return _TENANT.fullmatch(text) is not None
