"""Clients for programs over TCP: what a program imports.

    from pyoco_server.grid_client import GridClient, JobRequest

    async with GridClient("127.0.0.1", 5000, "clientA") as client:
        result = await client.run(JobRequest(exec_name="calcA", args=("--n", "3"), files={"in.txt": b"3\\n"}))
        await client.save_output(result, "out.zip")

`GridMultiClient` is the same over several groups. Both speak frames; `pyoco_server.http_client` speaks HTTP.
"""

from __future__ import annotations

from pyoco_server.client.frames.faults import ClientClosed, DoorUnreachable, OutputDamaged
from pyoco_server.client.frames.link import LinkSettings
from pyoco_server.client.frames.multi import ClientStats, GridMultiClient, GroupStats
from pyoco_server.client.frames.pace import Pace
from pyoco_server.client.frames.shares import Spread
from pyoco_server.client.frames.single import GridClient
from pyoco_server.core.frames.messages import JobRequest, JobResult, OutputRef
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.frames.tls import client_context
from pyoco_server.frames.wire import Timers

__all__ = [
    "ClientClosed",
    "ClientStats",
    "DoorUnreachable",
    "GridClient",
    "GridMultiClient",
    "GridRefused",
    "GroupStats",
    "JobRequest",
    "JobResult",
    "LinkSettings",
    "OutputDamaged",
    "OutputRef",
    "Pace",
    "Spread",
    "Timers",
    "client_context",
]
