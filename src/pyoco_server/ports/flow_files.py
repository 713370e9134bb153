"""Reading an uploaded flow.yaml."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.core.flow_file import FlowFile

__all__ = ["FlowFiles"]


class FlowFiles(Protocol):
    """Parses a flow.yaml into a flow that complies with the policy of section 7 of the contract.

    Gateway and worker use the same code, so that the worker can build what the gateway has accepted.
    """

    def read(self, data: bytes) -> FlowFile:
        """Parse the flow in `data`. Imports no task code, opens no file, reads no environment variable (FLOW-167).

        Raises WorkflowTooLarge above the size cap (FLOW-168) and InvalidFlow for anything else that is wrong: bytes
        that are not UTF-8, bad YAML, a violation of the policy, a graph the engine cannot parse. The error contains up
        to 20 problems with their positions, and repeats little of the user's text. Raises nothing else.

        Blocking CPU work, O(size) for every input: below 1 ms for a typical file, tens of ms for a typical one of 256
        KiB, a few hundred ms at worst for one crafted to be slow. On an event loop, call it in a thread.
        """
        ...
