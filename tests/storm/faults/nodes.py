"""Which NATS node may be struck: one at a time, and the next one only when the last has caught up."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.link import Link, Patience, Rejected, open_link
from storm.port import Role, Site, SiteProcess

__all__ = ["caught_up", "may_strike_node", "process_named", "release_node", "take_node"]

_CATCH_UP_SECONDS = 180.0


def process_named(site: Site, name: str) -> SiteProcess:
    return next(each for each in site.processes if each.name == name)


def may_strike_node(site: Site) -> bool:
    """Never two of three: without a majority nothing is promised but to wait. And one alone not twice at once."""
    nodes = site.of(Role.NATS)
    return bool(nodes) and not site.hurt and all(node.is_alive for node in nodes)


def take_node(site: Site, dice: random.Random) -> SiteProcess:
    """Reserve the nodes: no other fault strikes one until `release_node`."""
    assert may_strike_node(site), f"{site.hurt} are struck already"
    node = dice.choice(sorted(site.of(Role.NATS), key=lambda each: each.name))
    site.hurt.add(node.name)
    return node


async def release_node(site: Site, name: str) -> None:
    """After it has been healed: returns once it holds all that the others hold, and may be struck again. One that
    does not catch up within three minutes stays as it is, and no node is struck any more: the judge will see."""
    if name in site.hurt and await caught_up(site):
        site.hurt.discard(name)


async def caught_up(site: Site, seconds: float = _CATCH_UP_SECONDS) -> bool:
    """Whether every copy of every stream is current, within so many seconds. One node alone is, once it answers."""
    if not site.nats_url:
        return True
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if await _is_whole(site):
            return True
        await asyncio.sleep(0.2)
    return False


async def _is_whole(site: Site) -> bool:
    try:
        link = await open_link(site.nats_url, "storm", Patience(down_seconds=1.0, answer_seconds=2.0), 2.0)
    except Unavailable:
        return False
    try:
        return all(_is_current(site, stream) for stream in await _streams(link))
    except (Unavailable, Rejected):
        return False
    finally:
        await link.close()


async def _streams(link: Link) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = await link.api("STREAM.LIST", {"offset": len(found)}, dict[str, Any])
        found += page["streams"] or []
        # Streams whose leader did not answer are missing from the page, though they count.
        if page.get("missing"):
            raise Unavailable(f"{page['missing']} have no leader")
        if len(found) >= page["total"] or not page["streams"]:
            return found


def _is_current(site: Site, stream: dict[str, Any]) -> bool:
    cluster = stream.get("cluster") or {}
    if site.nodes == 1:
        return True
    peers = cluster.get("replicas") or []
    wanted = int(stream["config"].get("num_replicas", 1)) - 1
    return bool(cluster.get("leader")) and sum(_is_up(peer) for peer in peers) >= wanted


def _is_up(peer: dict[str, Any]) -> bool:
    return bool(peer.get("current")) and not peer.get("offline")
