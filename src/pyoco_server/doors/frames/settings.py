"""What a door is told on its command line, and where it may listen."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from pyoco_server.errors import ExposureRefused

__all__ = ["DoorOptions", "check_exposure", "is_loopback"]


@dataclass(frozen=True, kw_only=True)
class DoorOptions:
    """Beside the settings of `GridConfig`."""

    door_id: str
    #: `host:port` for clients and workers; and where it really listens.
    address: str
    bound: str = ""
    #: Other doors of the group, for redirects alone.
    peers: tuple[str, ...] = ()
    #: Whether it begins as a standby (GRID-43).
    is_standby: bool = False


def check_exposure(host: str, *, has_keys: bool, has_client_certificates: bool, is_insecure: bool, what: str) -> None:
    """GRID-165: who asks nobody for a key listens on this machine alone. Raises ExposureRefused."""
    if has_keys or has_client_certificates or is_insecure or is_loopback(host):
        return
    raise ExposureRefused(
        f"{what} on {host} would be open to everybody; set EXEC_AUTH=api_key, or use --tls-cert, --tls-key and "
        "--tls-ca, or say --insecure; example: EXEC_AUTH=api_key pyoco-grid leader 5000 --host 0.0.0.0"
    )


def is_loopback(host: str) -> bool:
    """By what is written: a name may mean another address tomorrow, so `localhost` is the only one that counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
