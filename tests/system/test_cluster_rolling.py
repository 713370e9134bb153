"""Every process of a cluster is restarted, one after the other, while clients use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.clusters import DemoCluster, loaded


@pytest.mark.timeout(600)  # a busy machine needs minutes for eight restarts
async def test_a_rolling_restart_of_everything_fails_no_request(demo_cluster: DemoCluster, tmp_path: Path) -> None:
    """GRID-181, FLOW-19, FLOW-308: NATS nodes first, each when the last one has caught up; then gateways, workers and
    the keeper. Clients have the patience that they have by themselves."""
    async with loaded(demo_cluster, tmp_path / "note") as load:
        for name in (*demo_cluster.nodes, "gateway-1", "gateway-2", "worker-1", "worker-2", "keeper"):
            seconds = await demo_cluster.restarted(name)
            print(f"{name} was away for {seconds:.1f} s; slowest answer so far {load.slowest_seconds:.1f} s")
            await load.more(4)
    await load.check(demo_cluster.addresses)
    print(f"{load.answered} requests, {len(load.accepted)} runs, slowest {load.slowest_seconds:.2f} s")
