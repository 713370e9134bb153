"""Reading an uploaded flow.yaml."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.core.flow_file import FlowFile

__all__ = ["FlowFiles"]


class FlowFiles(Protocol):
    """Turns the bytes of a flow.yaml into a flow that keeps the policy of section 7 of the contract.

    Gateway and worker read with the same code, so that what one accepts the other can build.
    """

    def read(self, data: bytes) -> FlowFile:
        """The flow in `data`. Imports no task code, opens no file, looks at no environment (FLOW-167).

        Raises WorkflowTooLarge above the cap (FLOW-168) and InvalidFlow for anything else that is wrong: bytes
        that are not UTF-8, bad YAML, a broken policy, a graph the engine cannot parse. The error holds up to 20
        problems with their places, and repeats little of the user's text. Raises nothing else.

        Blocking CPU work, O(size) for every input: below 1 ms for a usual file, tens of ms for a usual one of
        256 KiB, some hundreds at worst for one made to be slow. On an event loop, call it in a thread.
        """
        ...
