"""The contract's module name for the logging setup (section 18.7); the implementation is in `logs`."""

from __future__ import annotations

from pyoco_server.logs import configure_logging

__all__ = ["configure_logging"]
