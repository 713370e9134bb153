"""pyoco-server: ask for work over HTTP, and it runs, once, somewhere, while you watch.

Only names listed here are public. They are loaded on first use, so that a host process does not import the web
framework, nor the command line NATS.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyoco_server.config import NatsBackendConfig
    from pyoco_server.core.snapshot import compact_run_snapshot
    from pyoco_server.errors import SeveralServers
    from pyoco_server.executors.flow.own_tasks import task
    from pyoco_server.http_api import create_app
    from pyoco_server.http_client import AsyncPyocoHttpClient, PyocoHttpClient
    from pyoco_server.logs import configure_logging
    from pyoco_server.nats_client import PyocoNatsClient
    from pyoco_server.trace import NatsKvTraceBackend
    from pyoco_server.wiring.backend import ensure_resources
    from pyoco_server.worker import PyocoNatsWorker

__all__ = [
    "AsyncPyocoHttpClient",
    "NatsBackendConfig",
    "NatsKvTraceBackend",
    "PyocoHttpClient",
    "PyocoNatsClient",
    "PyocoNatsWorker",
    "SeveralServers",
    "compact_run_snapshot",
    "configure_logging",
    "create_app",
    "ensure_resources",
    "task",
]

_HOMES = {
    "AsyncPyocoHttpClient": "pyoco_server.http_client",
    "NatsBackendConfig": "pyoco_server.config",
    "NatsKvTraceBackend": "pyoco_server.trace",
    "PyocoHttpClient": "pyoco_server.http_client",
    "PyocoNatsClient": "pyoco_server.nats_client",
    "PyocoNatsWorker": "pyoco_server.worker",
    "SeveralServers": "pyoco_server.errors",
    "compact_run_snapshot": "pyoco_server.core.snapshot",
    "configure_logging": "pyoco_server.logs",
    "create_app": "pyoco_server.http_api",
    "ensure_resources": "pyoco_server.wiring.backend",
    "task": "pyoco_server.executors.flow.own_tasks",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pyoco_server' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
