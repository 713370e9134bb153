"""The command line options of a door, and the addresses it may listen on."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from pyoco_server.errors import ExposureRefused
from pyoco_server.logs import get_logger

__all__ = ["DoorOptions", "check_exposure", "check_openness", "is_loopback", "is_open_beside_keys"]

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class DoorOptions:
    """The options that are not settings of `GridConfig`."""

    door_id: str
    #: The advertised `host:port` for clients and workers; and the one it listens on.
    address: str
    bound: str = ""
    #: Other doors of the group, for redirects only.
    peers: tuple[str, ...] = ()
    #: Whether it starts as a standby (GRID-43).
    is_standby: bool = False


def check_exposure(host: str, *, has_keys: bool, has_client_certificates: bool, is_insecure: bool, what: str) -> None:
    """Check that a door without keys listens on this machine only (GRID-165). Raises ExposureRefused."""
    if has_keys or has_client_certificates or is_insecure or is_loopback(host):
        return
    raise ExposureRefused(
        f"{what} on {host} would be open to everybody; set EXEC_AUTH=api_key, or use --tls-cert, --tls-key and "
        "--tls-ca, or say --insecure; example: EXEC_AUTH=api_key pyoco-grid leader 5000 --host 0.0.0.0"
    )


def is_open_beside_keys(exec_auth: str, http_auth_mode: str) -> bool:
    """Return whether this door admits peers without a key while HTTP requires one."""
    return exec_auth == "none" and http_auth_mode == "api_key"


def check_openness(exec_auth: str, http_auth_mode: str, *, opens_frames: bool, what: str) -> None:
    """Check that a door without keys, beside HTTP with keys, was started with `--open-frames` (SAFE-4).

    Applies on every address, and also with client certificates. Logs a warning if the option is given. Raises
    ExposureRefused.
    """
    if not is_open_beside_keys(exec_auth, http_auth_mode):
        return
    if not opens_frames:
        raise ExposureRefused(
            f"{what} would ask for no key (EXEC_AUTH=none) while HTTP does (PYOCO_HTTP_AUTH_MODE=api_key); unset "
            "EXEC_AUTH, or give --open-frames; peers without a key then reach runs without a tenant only"
        )
    log.warning("clients and workers need no key here, although HTTP requires one", door=what)


def is_loopback(host: str) -> bool:
    """Judge by the text: a name may resolve to another address later, so `localhost` is the only name that counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
