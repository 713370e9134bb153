"""What a door is told on its command line, and where it may listen."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from pyoco_server.errors import ExposureRefused
from pyoco_server.logs import get_logger

__all__ = ["DoorOptions", "check_exposure", "check_openness", "is_loopback", "is_open_beside_keys"]

log = get_logger(__name__)


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


def is_open_beside_keys(exec_auth: str, http_auth_mode: str) -> bool:
    """Whether this door would let in anybody while HTTP asks for keys."""
    return exec_auth == "none" and http_auth_mode == "api_key"


def check_openness(exec_auth: str, http_auth_mode: str, *, opens_frames: bool, what: str) -> None:
    """SAFE-4: a door without keys beside HTTP with keys needs `--open-frames`, on every address and also with client
    certificates. Logs a warning when it is given. Raises ExposureRefused."""
    if not is_open_beside_keys(exec_auth, http_auth_mode):
        return
    if not opens_frames:
        raise ExposureRefused(
            f"{what} would ask for no key (EXEC_AUTH=none) while HTTP does (PYOCO_HTTP_AUTH_MODE=api_key); unset "
            "EXEC_AUTH, or give --open-frames; peers without a key then reach runs without a tenant only"
        )
    log.warning("clients and workers are let in without a key, although HTTP asks for one", door=what)


def is_loopback(host: str) -> bool:
    """By what is written: a name may mean another address tomorrow, so `localhost` is the only one that counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
