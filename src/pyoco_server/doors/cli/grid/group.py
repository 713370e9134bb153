"""The commands of `pyoco-grid`. Each is imported when it is called."""

from __future__ import annotations

import click

from pyoco_server.doors.cli.shell import LazyCommand, LazyGroup, run

__all__ = ["COMMANDS", "cli", "main"]


def _entry(place: str, summary: str, section: str) -> LazyCommand:
    return LazyCommand(f"{__package__}.{place}", summary, section)


def _old(place: str, summary: str) -> LazyCommand:
    """Return a command that is still understood and no longer listed (CLI-15)."""
    return LazyCommand(f"{__package__}.{place}", summary, hidden=True)


COMMANDS = {
    "leader": _entry("leader:leader", "Open a door: frames over TCP for clients and workers.", "Serve"),
    "worker": _entry("worker:worker", "Run programs for a door, over TCP.", "Serve"),
    "nworker": _entry("nworker:nworker", "Run programs straight from the queue, without a door.", "Serve"),
    "router": _entry("router:router", "Open a router: one door in front of several groups.", "Serve"),
    "client": _entry("client:client", "Submit jobs through a door and print their results.", "Ask"),
    "clientx": _entry("clientx:clientx", "Submit jobs to several groups, with failover.", "Ask"),
    "demo3": _entry("demo3:demo3", "Show three NATS nodes, three doors, a worker and a client.", "Try"),
    # Old spellings of `pyoco-server-admin program` and `pyoco-client dlq`.
    "state": _old("operate:state", "Show queues, running jobs, caps, doors and replicas."),
    "cap": _old("operate:cap", "Show or set how many programs of a client run at once."),
    "acl": _old("operate:acl", "Manage who may submit and who may run which programs."),
    "dlq": _old("operate:dead_letters", "Show, requeue or delete dead letters of programs."),
}


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    example="pyoco-grid demo3 --once\npyoco-grid leader 5000\npyoco-grid worker 127.0.0.1 5000",
    context_settings={"max_content_width": 110},
)
@click.version_option(package_name="pyoco-server")
def cli() -> None:
    """Run programs on many machines: doors, workers, clients.

    The exit code is 0 on success, 1 for a usage error or an unreachable server, 2 if a job did not complete, 3 if a
    configuration is refused, and 130 after Ctrl-C.
    """


def main() -> None:
    run(cli, "pyoco-grid")
