"""Which addresses may be reached: the public ones. Tables, and every special range by chance."""

from __future__ import annotations

import contextlib
import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyoco_server.core.web.addresses import Refusal, refusal

#: Written down here a second time, from the registries of special-purpose addresses and PRICED-144, on purpose.
RANGES = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24
    203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 255.255.255.255/32 168.63.129.16/32
    ::/128 ::1/128 ::/96 ::ffff:0:0/96 ::ffff:0:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23
    2001::/32 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8
    """
SPECIAL = [ipaddress.ip_network(net) for net in RANGES.split()]
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0"]
PUBLIC += ["198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700::1111", "2a00:1450:4001:800::200e"]
R = Refusal
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_reached(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("0.0.0.0", R.UNSPECIFIED),
        ("0.1.2.3", R.RESERVED),
        ("10.0.0.1", R.PRIVATE_IP),
        ("172.16.0.1", R.PRIVATE_IP),
        ("172.31.255.255", R.PRIVATE_IP),
        ("192.168.1.1", R.PRIVATE_IP),
        ("100.64.0.1", R.PRIVATE_IP),
        ("100.100.100.200", R.PRIVATE_IP),
        ("127.0.0.1", R.LOOPBACK),
        ("127.255.255.254", R.LOOPBACK),
        ("169.254.169.254", R.LINK_LOCAL),
        ("168.63.129.16", R.RESERVED),
        ("192.0.0.192", R.RESERVED),
        ("192.88.99.1", R.RESERVED),
        ("198.18.0.1", R.RESERVED),
        ("224.0.0.1", R.MULTICAST),
        ("239.255.255.250", R.MULTICAST),
        ("240.0.0.1", R.RESERVED),
        ("255.255.255.255", R.RESERVED),
        ("::", R.UNSPECIFIED),
        ("::1", R.LOOPBACK),
        ("0:0:0:0:0:0:0:1", R.LOOPBACK),
        ("fe80::1", R.LINK_LOCAL),
        ("fe80::1%eth0", R.LINK_LOCAL),
        ("fc00::1", R.PRIVATE_IP),
        ("fd00:ec2::254", R.PRIVATE_IP),
        ("fec0::1", R.PRIVATE_IP),
        ("ff02::1", R.MULTICAST),
        ("2001:db8::1", R.RESERVED),
        ("2001::1", R.RESERVED),
        ("3fff::1", R.RESERVED),
        ("100::1", R.RESERVED),
        ("4000::1", R.RESERVED),
        ("2606:4700::1111%eth0", R.RESERVED),
        ("::ffff:127.0.0.1", R.LOOPBACK),
        ("::ffff:7f00:1", R.LOOPBACK),
        ("::ffff:10.0.0.1", R.PRIVATE_IP),
        ("::ffff:169.254.169.254", R.LINK_LOCAL),
        ("::ffff:8.8.8.8", R.RESERVED),
        ("::127.0.0.1", R.LOOPBACK),
        ("::8.8.8.8", R.RESERVED),
        ("::ffff:0:127.0.0.1", R.LOOPBACK),
        ("64:ff9b::7f00:1", R.LOOPBACK),
        ("64:ff9b::a9fe:a9fe", R.LINK_LOCAL),
        ("64:ff9b::808:808", R.RESERVED),
        ("64:ff9b:1::10.0.0.1", R.PRIVATE_IP),
        ("2002:7f00:1::1", R.LOOPBACK),
        ("2002:a00:1::", R.PRIVATE_IP),
        ("2002:808:808::", R.RESERVED),
        ("2606:4700::5efe:7f00:1", R.LOOPBACK),
        ("2606:4700::200:5efe:10.0.0.1", R.PRIVATE_IP),
        ("", R.RESERVED),
        ("localhost", R.RESERVED),
        ("127.1", R.RESERVED),
        ("0177.0.0.1", R.RESERVED),
        ("127.0.0.1 ", R.RESERVED),
        ("%", R.RESERVED),
    ],
)
def test_an_address_that_is_not_public_is_refused_and_it_is_said_why(address: str, why: Refusal) -> None:
    """PRICED-136, PRICED-144"""
    assert refusal(address) is why


@pytest.mark.parametrize("network", SPECIAL, ids=str)
def test_both_ends_of_a_special_range_are_refused(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> None:
    """PRICED-144"""
    assert refusal(str(network[0])) is not None
    assert refusal(str(network[-1])) is not None


def within(net: ipaddress.IPv4Network | ipaddress.IPv6Network) -> st.SearchStrategy[Address]:
    return st.integers(0, net.num_addresses - 1).map(lambda at: net[at])


@settings(deadline=None)  # a busy machine is no fault
@given(st.one_of(st.ip_addresses(), st.sampled_from(SPECIAL).flatmap(within)))
def test_nothing_that_may_be_reached_lies_in_a_special_range(address: Address) -> None:
    """PRICED-144"""
    if any(address in net for net in SPECIAL if net.version == address.version):
        assert refusal(str(address)) is not None
    if refusal(str(address)) is None:
        assert address.is_global
        assert not address.is_multicast
        assert address.version == 4 or address in ipaddress.ip_network("2000::/3")


@settings(deadline=None)  # a busy machine is no fault
@given(st.ip_addresses(v=4))
def test_an_ipv4_address_inside_an_ipv6_one_is_never_reached(inside: ipaddress.IPv4Address) -> None:
    """PRICED-144: not even a public one"""
    low = int(inside)
    for prefix in ("::ffff:0:0", "64:ff9b::", "64:ff9b:1::", "::ffff:0:0:0", "2606:4700::5efe:0:0"):
        outside = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) + low)
        assert refusal(str(outside)) == (refusal(str(inside)) or Refusal.RESERVED)
    assert refusal(str(ipaddress.IPv6Address((0x2002 << 112) + (low << 80) + 1))) is not None


@settings(deadline=None)  # a busy machine is no fault
@given(st.text(max_size=60))
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(text)
        return
    assert refusal(text) is Refusal.RESERVED
