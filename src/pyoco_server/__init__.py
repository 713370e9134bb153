"""pyoco-server: ask for work over HTTP, and it runs, once, somewhere, while you watch.

Only names listed here are public. They are loaded on first use, so that a host process does not import the web
framework, nor the command line NATS.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyoco_server.app.aio_handles import AsyncRunHandle
    from pyoco_server.app.app import App
    from pyoco_server.app.failures import ResultUnavailable, RunCancelled, RunFailed, RunTimeout
    from pyoco_server.app.handles import RunHandle
    from pyoco_server.app.lines import LogLine
    from pyoco_server.app.retry import Retry
    from pyoco_server.app.run_set import RunSet, as_completed, gather
    from pyoco_server.config import NatsBackendConfig
    from pyoco_server.core.snapshot import compact_run_snapshot
    from pyoco_server.errors import PyocoError, SeveralServers
    from pyoco_server.executors.flow.building import ends
    from pyoco_server.executors.flow.own_tasks import task
    from pyoco_server.http_api import create_app
    from pyoco_server.http_client import AsyncPyocoHttpClient, PyocoHttpClient
    from pyoco_server.logs import configure_logging
    from pyoco_server.nats_client import PyocoNatsClient
    from pyoco_server.trace import NatsKvTraceBackend
    from pyoco_server.wiring.backend import ensure_resources
    from pyoco_server.worker import PyocoNatsWorker

__all__ = [
    "App",
    "AsyncPyocoHttpClient",
    "AsyncRunHandle",
    "LogLine",
    "NatsBackendConfig",
    "NatsKvTraceBackend",
    "PyocoError",
    "PyocoHttpClient",
    "PyocoNatsClient",
    "PyocoNatsWorker",
    "ResultUnavailable",
    "Retry",
    "RunCancelled",
    "RunFailed",
    "RunHandle",
    "RunSet",
    "RunTimeout",
    "SeveralServers",
    "as_completed",
    "compact_run_snapshot",
    "configure_logging",
    "create_app",
    "ends",
    "ensure_resources",
    "gather",
    "task",
]

_HOMES = {
    "App": "pyoco_server.app.app",
    "AsyncPyocoHttpClient": "pyoco_server.http_client",
    "AsyncRunHandle": "pyoco_server.app.aio_handles",
    "LogLine": "pyoco_server.app.lines",
    "NatsBackendConfig": "pyoco_server.config",
    "NatsKvTraceBackend": "pyoco_server.trace",
    "PyocoError": "pyoco_server.errors",
    "PyocoHttpClient": "pyoco_server.http_client",
    "PyocoNatsClient": "pyoco_server.nats_client",
    "PyocoNatsWorker": "pyoco_server.worker",
    "ResultUnavailable": "pyoco_server.app.failures",
    "Retry": "pyoco_server.app.retry",
    "RunCancelled": "pyoco_server.app.failures",
    "RunFailed": "pyoco_server.app.failures",
    "RunHandle": "pyoco_server.app.handles",
    "RunSet": "pyoco_server.app.run_set",
    "RunTimeout": "pyoco_server.app.failures",
    "SeveralServers": "pyoco_server.errors",
    "as_completed": "pyoco_server.app.run_set",
    "compact_run_snapshot": "pyoco_server.core.snapshot",
    "configure_logging": "pyoco_server.logs",
    "create_app": "pyoco_server.http_api",
    "ends": "pyoco_server.executors.flow.building",
    "ensure_resources": "pyoco_server.wiring.backend",
    "gather": "pyoco_server.app.run_set",
    "task": "pyoco_server.executors.flow.own_tasks",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pyoco_server' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
