"""The contract's name for how logging is set up (section 18.7); it lives in `logs`."""

from __future__ import annotations

from pyoco_server.logs import configure_logging

__all__ = ["configure_logging"]
