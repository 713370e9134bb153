"""Warns about settings without an effect: one that is silently ignored is worse than one that does not parse."""

from __future__ import annotations

import os

from pyoco_server.config import unknown_variables, unused_variables
from pyoco_server.logs import get_logger

__all__ = ["warn_of_typos"]

log = get_logger(__name__)


def warn_of_typos() -> None:
    """Log one line for each PYOCO_ variable that looks like a misspelt setting, and for each setting that is no longer
    used. Call it after logging is configured."""
    for name, meant in unknown_variables(os.environ).items():
        log.warning("unknown setting ignored", variable=name, perhaps=meant)
    for name, instead in unused_variables(os.environ).items():
        log.warning("setting is no longer used", variable=name, instead=instead)
