"""Which addresses may be reached from here: those of the public internet, and no other (PRICED-136, PRICED-144).

`is_global` of the standard library is asked as well, and never trusted alone: Python 3.11.7 says True for 192.0.0.8,
192.88.99.1, fec0::1 and 3fff::1.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Final

__all__ = ["Refusal", "refusal"]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refusal(StrEnum):
    """Why nobody connects to an address."""

    PRIVATE_IP = "PRIVATE_IP"
    LOOPBACK = "LOOPBACK"
    LINK_LOCAL = "LINK_LOCAL"
    MULTICAST = "MULTICAST"
    RESERVED = "RESERVED"
    UNSPECIFIED = "UNSPECIFIED"


#: The first that holds an address tells why.
_DENIED: Final[dict[Refusal, str]] = {
    Refusal.UNSPECIFIED: "0.0.0.0/32 ::/128",
    Refusal.LOOPBACK: "127.0.0.0/8 ::1/128",
    # 169.254.169.254 is where most clouds tell a machine its secrets.
    Refusal.LINK_LOCAL: "169.254.0.0/16 fe80::/10",
    # 100.64/10 is shared by a provider's customers; fec0::/10 was "site-local".
    Refusal.PRIVATE_IP: "10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
    Refusal.MULTICAST: "224.0.0.0/4 ff00::/8",
    Refusal.RESERVED: """
        0.0.0.0/8 192.0.0.0/24 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.175.48.0/24
        198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4
        168.63.129.16/32
        100::/64 100:0:0:1::/64 2001::/23 2001:db8::/32 2620:4f:8000::/48 3fff::/20 5f00::/16""",
    # 168.63.129.16 looks public, and is the inside of a cloud to each of its machines.
}
_NETWORKS: Final = tuple((ipaddress.ip_network(net), why) for why, nets in _DENIED.items() for net in nets.split())

#: Where IPv6 is given out at all. What lies elsewhere is refused, named above or not.
_UNICAST: Final = ipaddress.ip_network("2000::/3")

#: IPv6 forms with an IPv4 address inside, and how far from the right it stands. All are refused: who has such a name
#: has a shorter one. The address inside tells why.
_EMBEDDING: Final = tuple(
    (ipaddress.IPv6Network(net), shift)
    for net, shift in (
        ("::/96", 0),  # IPv4-compatible
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # IPv4-translated
        ("64:ff9b::/96", 0),  # NAT64
        ("64:ff9b:1::/48", 0),  # NAT64 of a site
        ("2002::/16", 80),  # 6to4
    )
)
#: ISATAP: the right half of any address.
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})


def refusal(text: str) -> Refusal | None:
    """Why this address is not reached; None: it may be. O(1). What is no address, or has a scope id, is refused too."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return Refusal.RESERVED
    why = _refused(address)
    return Refusal.RESERVED if why is None and "%" in text else why


def _refused(address: _Address) -> Refusal | None:
    for network, why in _NETWORKS:
        if address in network:
            return why
    if isinstance(address, ipaddress.IPv6Address):
        embedded = _embedded(address)
        if embedded is not None:
            return _refused(embedded) or Refusal.RESERVED
        if address not in _UNICAST:
            return Refusal.RESERVED
    return None if address.is_global and not address.is_multicast else Refusal.RESERVED


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    number = int(address)
    shift = next((shift for network, shift in _EMBEDDING if address in network), None)
    if shift is None and (number >> 32) & 0xFFFF_FFFF in _ISATAP:
        shift = 0
    return None if shift is None else ipaddress.IPv4Address((number >> shift) & 0xFFFF_FFFF)
