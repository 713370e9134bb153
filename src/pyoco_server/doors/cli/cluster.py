"""`pyoco-server cluster`: a complete cluster on one machine, to try its fault tolerance."""

from __future__ import annotations

import click

from pyoco_server.doors.cli.shell import Group

__all__ = ["cluster"]

_NODES_MIN, _NODES_MAX = 3, 5
_PORT_MAX = 65_534


@click.group(cls=Group, example="pyoco-server cluster demo")
def cluster() -> None:
    """Try a cluster on this machine."""


@cluster.command(
    example="pyoco-server cluster demo\n"
    "pyoco-server cluster demo --once\n"
    "pyoco-server cluster demo --port 9000 --flow-resolver my_flows:resolve"
)
@click.option(
    "--once", is_flag=True, help="Run a short demo with a killed node, stop everything, and exit with 0 or 1."
)
@click.option(
    "--port",
    type=click.IntRange(0, _PORT_MAX),
    default=8000,
    show_default=True,
    help="Port of the first gateway; the second has the next one. 0: free ones.",
)
@click.option(
    "--data-dir", metavar="DIR", help="Directory of all data. [default: .pyoco-cluster; with --once, a temporary one]"
)
@click.option(
    "--nodes",
    type=click.IntRange(_NODES_MIN, _NODES_MAX),
    default=_NODES_MIN,
    show_default=True,
    help="NATS nodes. Three of them keep a copy of everything.",
)
@click.option("--workers", type=click.IntRange(1, 16), default=2, show_default=True, help="Workers to start.")
@click.option("--flow-resolver", metavar="MODULE:CALLABLE", help="Where workers find flows. [default: a sample]")
def demo(*, once: bool, port: int, data_dir: str | None, nodes: int, workers: int, flow_resolver: str | None) -> int:
    """Start three NATS nodes, two gateways, two workers and a keeper, with three copies of everything.

    Then kill any process you like: it is restarted, and no run is lost. Data survives a restart. Ctrl-C stops
    everything in order; a second one stops immediately.

    With --once the command does this itself: it submits runs through one gateway, kills the NATS node that leads their
    queue, continues through the other gateway, restarts the node, and prints how long each step took.
    """
    from pyoco_server.doors.cli.cluster_demo import DemoOptions, run_demo

    return run_demo(DemoOptions(once, port, data_dir, nodes, workers, flow_resolver))
