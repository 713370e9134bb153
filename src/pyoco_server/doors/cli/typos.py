"""A setting that nobody reads is worse than one that does not parse: its owner believes in it."""

from __future__ import annotations

import os

from pyoco_server.config import unknown_variables
from pyoco_server.logs import get_logger

__all__ = ["warn_of_typos"]

log = get_logger(__name__)


def warn_of_typos() -> None:
    """One line for each PYOCO_ variable that looks like a misspelt one of ours. To be called once the log is set up."""
    for name, meant in unknown_variables(os.environ).items():
        log.warning("an unknown setting does nothing", variable=name, perhaps=meant)
