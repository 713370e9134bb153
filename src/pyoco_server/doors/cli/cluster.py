"""`pyoco-server cluster`: a whole cluster on one machine, to see what it survives."""

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
    "--once", is_flag=True, help="Tell a short story with a killed node, stop everything, and end with 0 or 1."
)
@click.option(
    "--port",
    type=click.IntRange(0, _PORT_MAX),
    default=8000,
    show_default=True,
    help="Port of the first gateway; the second has the next one. 0: free ones.",
)
@click.option(
    "--data-dir", metavar="DIR", help="Where everything is kept. [default: .pyoco-cluster; with --once, nowhere]"
)
@click.option(
    "--nodes",
    type=click.IntRange(_NODES_MIN, _NODES_MAX),
    default=_NODES_MIN,
    show_default=True,
    help="NATS nodes. Three keep a copy of everything, however many there are.",
)
@click.option("--workers", type=click.IntRange(1, 16), default=2, show_default=True, help="Workers to start.")
@click.option("--flow-resolver", metavar="MODULE:CALLABLE", help="Where workers find flows. [default: a sample]")
def demo(*, once: bool, port: int, data_dir: str | None, nodes: int, workers: int, flow_resolver: str | None) -> int:
    """Start three NATS nodes, two gateways, two workers and a keeper, with three copies of everything.

    Then kill what you like: a process that ends is started again, and no run is lost. Data survive a restart. Ctrl-C
    stops everything in order, a second one at once.

    With --once it does so itself: it submits runs through one gateway, kills the node that leads their queue, goes on
    through the other gateway, brings the node back, and says how long each took.
    """
    from pyoco_server.doors.cli.cluster_demo import DemoOptions, run_demo  # noqa: PLC0415 - not for --help

    return run_demo(DemoOptions(once, port, data_dir, nodes, workers, flow_resolver))
