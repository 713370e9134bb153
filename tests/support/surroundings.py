"""The environment of the person who runs the tests, without what would change how our commands behave."""

from __future__ import annotations

import os

__all__ = ["own_variables", "variables_without"]

#: No process finds a server of this machine or of another test, unless its test asks for that. `conftest.py` turns it
#: off for tests in this process; storms and pictures are made without it.
_DISCOVERY = "PYOCO_DISCOVERY"


def variables_without(*prefixes: str) -> dict[str, str]:
    """The environment for a process of ours, without the variables that begin with one of these."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, _DISCOVERY: os.environ.get(_DISCOVERY, "0")}


def own_variables() -> list[str]:
    """Those that begin with PYOCO_, to be removed."""
    return [name for name in os.environ if name.startswith("PYOCO_") and name != _DISCOVERY]
