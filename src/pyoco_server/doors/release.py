"""Which version of us answers."""

from __future__ import annotations

from importlib import metadata
from typing import Final

__all__ = ["RELEASE"]

RELEASE: Final = metadata.version("pyoco-server")
