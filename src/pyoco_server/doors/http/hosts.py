"""Under which names the gateway answers."""

from __future__ import annotations

import ipaddress

from pyoco_server.config.settings import ANY_HOST

__all__ = ["answers_to", "host_name"]


def answers_to(hosts: tuple[str, ...], asked: bytes) -> bool:
    """Whether a request with this `Host` is for a gateway of these names.

    Whoever owns a name can let it lead to this machine, and a browser then takes our answers for those of that owner's
    page. An address has no such owner, nor has `localhost`: those are answered whatever the settings say. So is who
    names nothing, which no browser does.
    """
    if ANY_HOST in hosts:
        return True
    name = host_name(asked).decode("latin-1").removesuffix(".")
    return not name or name in hosts or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def host_name(address: bytes) -> bytes:
    """Without the port, in lower case. The address of a machine may have colons of its own, within brackets."""
    address = address.strip().lower()
    if address.startswith(b"["):
        return address.partition(b"]")[0] + b"]"
    return address.partition(b":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
