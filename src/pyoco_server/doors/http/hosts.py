"""Host names under which the gateway answers."""

from __future__ import annotations

import ipaddress

from pyoco_server.config.settings import ANY_HOST

__all__ = ["answers_to", "host_name"]


def answers_to(hosts: tuple[str, ...], asked: bytes) -> bool:
    """Return whether a request with this `Host` header is meant for a gateway with these names.

    The owner of a name can point it at this server, and a browser then treats our responses as those of the owner's
    page. IP addresses and `localhost` have no such owner: they are accepted whatever the settings. So is a request
    without a host, which no browser sends.
    """
    if ANY_HOST in hosts:
        return True
    name = host_name(asked).decode("latin-1").removesuffix(".")
    return not name or name in hosts or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def host_name(address: bytes) -> bytes:
    """Return the host in lower case, without the port. An IPv6 address has colons of its own, within brackets."""
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
