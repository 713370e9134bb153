"""What the command lines of doors and routers have in common."""

from __future__ import annotations

import re
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyoco_server.doors.frames.settings import DoorOptions, check_exposure, check_openness
from pyoco_server.doors.frames.tls import ServerTls, TlsFiles
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.config import GridConfig, NatsBackendConfig
    from pyoco_server.doors.cli.grid.members import ClusterMembers

__all__ = ["check_access", "door_options", "read_peers", "server_tls"]


def server_tls(cert: str | None, key: str | None, ca: str | None) -> ServerTls | None:
    if cert is None or key is None:
        if cert is not None or key is not None or ca is not None:
            raise UsageError("TLS needs both --tls-cert and --tls-key; example: --tls-cert door.crt --tls-key door.key")
        return None
    return ServerTls(TlsFiles(Path(cert), Path(key), None if ca is None else Path(ca)))


def check_access(
    config: NatsBackendConfig, grid: GridConfig, tls: ServerTls | None, host: str, given: dict[str, Any], what: str
) -> None:
    """Raise ExposureRefused if anyone could connect on `host`, and UsageError if the settings reject every client."""
    has_certificates = tls is not None and tls.demands_certificates
    check_exposure(
        host,
        has_keys=grid.exec_auth == "api_key",
        has_client_certificates=has_certificates,
        is_insecure=given["insecure"],
        what=what,
    )
    check_openness(grid.exec_auth, config.http_auth_mode, opens_frames=given["open_frames"], what=what)
    if grid.exec_tls_bind_cn and not has_certificates:
        raise UsageError(
            "EXEC_TLS_BIND_CN=1 needs --tls-cert, --tls-key and --tls-ca: otherwise no client presents a name"
        )


def _address(option: str, text: str) -> str:
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UsageError(
            f"{option} has {text.strip()[:80]!r}, which is not host:port; example: {option} 127.0.0.1:5001"
        )
    return text.strip()


def read_peers(text: str) -> tuple[str, ...]:
    """Parse `host:port,host:port`. Raises UsageError."""
    return tuple(_address("--peers", each) for each in text.split(",") if each.strip())


def door_options(
    listening: socket.socket,
    host: str,
    given: dict[str, Any],
    peers: tuple[str, ...],
    members: ClusterMembers | None = None,
) -> DoorOptions:
    """Build the options of a door. `members` is the cluster it belongs to, whose list contains its advertised
    address."""
    port = listening.getsockname()[1]
    bound = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # New at each start: attempts held before a restart are not held any more (GRID-56).
    machine = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:40]
    address = bound if given["advertise"] is None else _address("--advertise", given["advertise"])
    return DoorOptions(
        door_id=f"{machine}-{port}-{secrets.token_hex(4)}",
        address=address if members is None else members.own,
        bound=bound,
        peers=peers if members is None else members.others,
        is_standby=given.get("role") == "standby",
    )
