"""Decides which IP addresses may be connected to: only those of the public internet (PRICED-136, PRICED-144).

`is_global` of the standard library is checked too, but not trusted alone: Python 3.11.7 returns True for 192.0.0.8,
192.88.99.1, fec0::1 and 3fff::1.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Final

__all__ = ["Refusal", "refusal"]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refusal(StrEnum):
    """Why an address is refused."""

    PRIVATE_IP = "PRIVATE_IP"
    LOOPBACK = "LOOPBACK"
    LINK_LOCAL = "LINK_LOCAL"
    MULTICAST = "MULTICAST"
    RESERVED = "RESERVED"
    UNSPECIFIED = "UNSPECIFIED"


#: The first entry that contains an address determines the reason.
_DENIED: Final[dict[Refusal, str]] = {
    Refusal.UNSPECIFIED: "0.0.0.0/32 ::/128",
    Refusal.LOOPBACK: "127.0.0.0/8 ::1/128",
    # 169.254.169.254 is the metadata service of most clouds, from which a machine obtains its credentials.
    Refusal.LINK_LOCAL: "169.254.0.0/16 fe80::/10",
    # 100.64/10 is shared by a provider's customers; fec0::/10 was "site-local".
    Refusal.PRIVATE_IP: "10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
    Refusal.MULTICAST: "224.0.0.0/4 ff00::/8",
    Refusal.RESERVED: """
        0.0.0.0/8 192.0.0.0/24 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.175.48.0/24
        198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4
        168.63.129.16/32
        100::/64 100:0:0:1::/64 2001::/23 2001:db8::/32 2620:4f:8000::/48 3fff::/20 5f00::/16""",
    # 168.63.129.16 looks public, but is an internal address of a cloud, reachable from each of its machines.
}
_NETWORKS: Final = tuple((ipaddress.ip_network(net), why) for why, nets in _DENIED.items() for net in nets.split())

#: The range from which IPv6 unicast addresses are allocated. Everything outside is refused, listed above or not.
_UNICAST: Final = ipaddress.ip_network("2000::/3")

#: IPv6 formats that embed an IPv4 address, and the offset of that address from the right. All are refused, because
#: the plain IPv4 address can be used instead. The embedded address determines the reason.
_EMBEDDING: Final = tuple(
    (ipaddress.IPv6Network(net), shift)
    for net, shift in (
        ("::/96", 0),  # IPv4-compatible
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # IPv4-translated
        ("64:ff9b::/96", 0),  # NAT64
        ("64:ff9b:1::/48", 0),  # site-local NAT64
        ("2002::/16", 80),  # 6to4
    )
)
#: ISATAP: identifies the lower 64 bits of any address.
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})


def refusal(text: str) -> Refusal | None:
    """Return why an address must not be connected to; None: it is allowed. O(1).

    Invalid addresses and addresses with a scope id are refused too.
    """
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
