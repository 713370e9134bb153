"""The nats-server that a command starts for itself: `pyoco-server up`, `cluster demo` and `pyoco-grid leader`."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli.claims import DataDir
from pyoco_server.embedded import EmbeddedNats, find_command
from pyoco_server.errors import UsageError
from pyoco_server.loops.supervisor import Part

__all__ = ["DOOR_DRAIN_SECONDS", "cluster_sync", "nats_part", "refuse_logins"]

#: Drain time of the only door: its workers and clients have no other door to go to.
DOOR_DRAIN_SECONDS = 3.0


def refuse_logins(config: NatsBackendConfig, option: str) -> None:
    """Raise UsageError for settings of a NATS with users or certificates. `option` is the option for such a NATS."""
    if config.nats_user or config.nats_creds or config.nats_tls_ca or config.nats_tls_cert:
        raise UsageError(
            "PYOCO_NATS_USER, PYOCO_NATS_CREDS and PYOCO_NATS_TLS_* are for a NATS that runs already: name it with "
            f"{option}; ours has neither users nor certificates"
        )


def cluster_sync() -> str | None:
    """Return `nats_sync` for a cluster: sync each write before it is acknowledged, unless PYOCO_NATS_SYNC is set.

    Nodes on one machine, or in one rack, lose power together. None: PYOCO_NATS_SYNC decides.
    """
    return None if "PYOCO_NATS_SYNC" in os.environ else "always"


def nats_part(
    nats: EmbeddedNats,
    data_dir: DataDir,
    *,
    stops: int,
    name: str = "nats",
    command: Callable[[], Sequence[str | Path]] | None = None,
    until_ready: Callable[[], Awaitable[None]] | None = None,
    death: signal.Signals = signal.SIGTERM,
) -> Part:
    """Build the process of `nats`. It holds the lock of the data directory as long as it runs."""

    def environment() -> dict[str, str]:
        """Append the directory of our nats-server to the PATH, where nats-bootstrap searches for it."""
        found = find_command("nats-server")
        path = os.environ.get("PATH", os.defpath)
        return {**os.environ, "PATH": f"{path}{os.pathsep}{found.parent}" if found is not None else path}

    return Part(
        name=name,
        command=command or nats.command,
        environment=environment,
        until_ready=until_ready or nats.until_ready,
        failure=nats.failure,
        output=nats.console_file,
        inherit=[data_dir.lock],
        # SIGTERM: NATS stops cleanly even if the parent is killed.
        death=death,
        stops=stops,
        stop_seconds=15.0,
        is_base=True,
    )
