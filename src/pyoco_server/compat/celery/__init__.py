"""The shape of Celery, for programs that move: change the import, and serve the module with `pyoco-worker`.

What is not here raises NotImplementedError with what to use instead; nothing is ignored.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pyoco_server.compat.celery.refusals import MODULE, refusal

if TYPE_CHECKING:
    from pyoco_server.compat.celery.app import Celery
    from pyoco_server.compat.celery.canvas import chain, chord, group, signature
    from pyoco_server.compat.celery.results import AsyncResult

__all__ = ["AsyncResult", "Celery", "chain", "chord", "group", "signature"]

_HOMES = {
    "AsyncResult": "results",
    "Celery": "app",
    "chain": "canvas",
    "chord": "canvas",
    "group": "canvas",
    "signature": "canvas",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is not None:
        return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise refusal(name, MODULE)


def __dir__() -> list[str]:
    return __all__
