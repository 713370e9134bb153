"""Find or create durable consumers that several processes share."""

from __future__ import annotations

from typing import Any

import msgspec

from pyoco_server.ports.nats.link import Link, Rejected

__all__ = ["CONSUMER_NOT_FOUND", "find_or_make"]

CONSUMER_NOT_FOUND = 10014
#: Another process has just created it (10105), with other settings (10148).
_EXISTS = frozenset({10148, 10105})


class _Info(msgspec.Struct):
    config: dict[str, Any]


async def find_or_make(link: Link, stream: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the consumer's settings on the server: an existing consumer keeps its own (FLOW-292).

    Raises Rejected if it can neither be found nor created, Unavailable if NATS does not answer.
    """
    name = wanted["durable_name"]
    found = await _find(link, stream, name)
    if found is not None:
        return found.config
    subject = wanted.get("filter_subject")
    path = f"CONSUMER.CREATE.{stream}.{name}.{subject}" if subject else f"CONSUMER.CREATE.{stream}.{name}"
    request = {"stream_name": stream, "config": wanted, "action": "create"}
    try:
        return (await link.insist(path, request, _Info)).config
    except Rejected as error:
        found = await _find(link, stream, name) if error.code in _EXISTS else None
        if found is None:
            raise
        return found.config


async def _find(link: Link, stream: str, name: str) -> _Info | None:
    try:
        return await link.insist(f"CONSUMER.INFO.{stream}.{name}", {}, _Info)
    except Rejected as error:
        if error.code == CONSUMER_NOT_FOUND:
            return None
        raise
