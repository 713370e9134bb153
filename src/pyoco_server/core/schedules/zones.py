"""Time zones by their IANA names. The data is that of the machine, or else of the package `tzdata`."""

from __future__ import annotations

import re
from datetime import UTC, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

__all__ = ["zone_of"]

#: Files beside the zones: the machine's own setting, and other forms of the same data.
_NO_ZONES = re.compile(r"localtime|posixrules|Factory|(posix|right)/.*")
_NAME = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """Raises ValueError for an unknown name."""
    if name == "UTC":  # also on a machine without data
        return UTC
    if _NAME.fullmatch(name) and not _NO_ZONES.fullmatch(name):
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, OSError, ValueError):  # a folder of the data, or a damaged file
            pass
    raise ValueError("must be an IANA time zone such as Asia/Tokyo, Europe/Berlin or UTC")
