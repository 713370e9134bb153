"""Check the flow name of a submission against what live workers announce."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.flow_offers import judge_name
from pyoco_server.errors import FlowNotOffered, Problem
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["NamedFlow", "check_flow_name"]


@dataclass(frozen=True)
class NamedFlow:
    """A flow that a request names."""

    name: str
    #: The routing tag of its runs.
    tag: str
    #: Where the request names it.
    loc: tuple[str, ...] = ("body", "flow_name")


async def check_flow_name(backend: GatewayBackend, asked: NamedFlow, receipt_place: str | None = None) -> str | None:
    """Return a warning if no live worker announces the flow, although one without a complete announcement may know it
    (APP-12). None: there is nothing to say.

    `receipt_place`: where the receipt of the request's idempotency key is. A request that was accepted before is not
    refused later, whatever the workers offer by then.

    No round trip, and nothing is written: the registry is in memory. O(workers), one step for each while no worker
    serves an app. Only a finding waits until the registry is certainly up to date, and reads the receipt. Raises
    FlowNotOffered, Unavailable.
    """
    now, silence = backend.clock(), backend.config.worker_disconnect_timeout_sec
    if judge_name(asked.name, asked.tag, backend.registry.known(), now, silence) is None:
        return None
    finding = judge_name(asked.name, asked.tag, await backend.registry.all(), now, silence)
    if finding is None or not finding.refused:
        return None if finding is None else finding.message
    if receipt_place is not None and await backend.receipts.find(receipt_place) is not None:
        return None
    raise FlowNotOffered(finding.message, problems=(Problem(asked.loc, finding.message, "unknown_flow"),))
