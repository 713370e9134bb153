"""`pyoco-server-admin replicas`: changes how many NATS nodes store each stream."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pyoco_server.doors.cli.backup import run_until_signalled
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.actions.change_replicas import Changed, Planned
    from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
    from pyoco_server.core.replicas import StreamReplicas

__all__ = ["replicas"]

_EXAMPLE = """\
pyoco-server-admin replicas 3 --dry-run
pyoco-server-admin replicas 3
pyoco-server-admin --nats-url nats://n1:4222,nats://n2:4222,nats://n3:4222 replicas 3 --json
pyoco-server-admin replicas 1 --yes"""
#: Between two progress lines about the same stream.
_SHOW_SECONDS = 2.0


@click.command(cls=Command, example=_EXAMPLE)
@click.argument("count", metavar="N", type=click.IntRange(1, 5))
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before the number of copies is reduced.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def replicas(
    configured: Callable[[], NatsBackendConfig], /, *, count: int, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Keep N copies of every stream, bucket and object store, each on another node; in place, while everything runs.

    Returns when every copy is up to date. If it was interrupted or killed, run it again to continue. It refuses if
    fewer than N nodes respond, which it tests with an empty stream of its own, or if a node is down. Afterwards set
    PYOCO_JETSTREAM_REPLICAS=N for all processes: it is the number of copies of newly created streams.
    """
    if count == 2 and not yes:
        raise UsageError(
            "two copies do not survive the loss of a node: one copy is no majority, and nothing can be written; use 3; "
            "--yes insists"
        )
    config = configured()
    priced, grid = _settings(count)
    plan = run_until_signalled(lambda: _plan(config, priced, grid, count))
    if dry_run:
        _print_plan(plan, as_json)
        return
    if plan.lowers and not yes:
        _confirm(plan)
    done: list[Changed] = []
    if plan.to_change:
        run_until_signalled(lambda: _change(config, priced, grid, plan, _View(done, is_quiet=as_json)))
    _print_done(plan, done, as_json)


def _settings(count: int) -> tuple[PricedConfig | None, GridConfig]:
    """Return the settings. Raises UsageError for a setting with which the next started process would undo the
    change."""
    from pyoco_server.config import grid_from_env, priced_from_env

    priced, grid = priced_from_env()[0], grid_from_env()
    if grid.exec_replicas > count:
        raise UsageError(
            f"EXEC_REPLICAS={grid.exec_replicas} here: a process that starts with it restores that number of copies "
            f"for everything; remove it from all processes first; PYOCO_JETSTREAM_REPLICAS={count} is enough"
        )
    return (priced if priced.priced_enabled else None), grid


async def _plan(config: NatsBackendConfig, priced: PricedConfig | None, grid: GridConfig, count: int) -> Planned:
    from pyoco_server.actions.change_replicas import plan_replicas
    from pyoco_server.wiring.operating import open_replicas

    async with open_replicas(config, priced, grid) as replicas:
        return await plan_replicas(replicas, count)


async def _change(
    config: NatsBackendConfig, priced: PricedConfig | None, grid: GridConfig, plan: Planned, view: _View
) -> None:
    from pyoco_server.actions.change_replicas import change_replicas
    from pyoco_server.wiring.operating import open_replicas

    async with open_replicas(config, priced, grid) as replicas:
        await change_replicas(replicas, plan, view.show, view.tell)


def _confirm(plan: Planned) -> None:
    """Ask for confirmation. Raises UsageError if there is no terminal, click.Abort if the answer is no."""
    if not sys.stdin.isatty():
        raise UsageError("fewer copies survive fewer failures, and there is no terminal to ask on: add --yes")
    fewer = sum(each.wanted > plan.count for each in plan.streams)
    click.confirm(f"Keep {plan.count} of each, fewer than now for {fewer} streams?", abort=True, err=True)


class _View:
    """Shows progress on stderr; stdout is for the result."""

    def __init__(self, done: list[Changed], *, is_quiet: bool) -> None:
        self._done, self._is_quiet = done, is_quiet
        self._next_at = time.monotonic() + _SHOW_SECONDS

    def show(self, found: StreamReplicas) -> None:
        if time.monotonic() >= self._next_at and not self._is_quiet:
            self._next_at = time.monotonic() + _SHOW_SECONDS
            click.echo(f"{found.stream}: {_waiting_for(found)}", err=True)

    def tell(self, changed: Changed) -> None:
        self._done.append(changed)
        self._next_at = time.monotonic() + _SHOW_SECONDS
        if not self._is_quiet:
            change = f"{changed.before} -> {changed.after}" if changed.before != changed.after else "caught up"
            click.echo(f"{changed.stream}: {change} in {changed.seconds:.1f} s, on {', '.join(changed.nodes) or 'it'}")


def _waiting_for(found: StreamReplicas) -> str:
    late = [f"{each.name} ({each.lag:,} behind)" for each in found.followers if not each.is_current]
    if late:
        return f"waits for {', '.join(late)}"
    if found.consumers_behind:
        return f"waits for {found.consumers_behind:,} consumers"
    return "waits for a leader" if not found.leader else f"waits for its nodes: {', '.join(found.nodes)} so far"


def _print_plan(plan: Planned, as_json: bool) -> None:
    if as_json:
        _print("planned", plan, [])
        return
    for each in plan.streams:
        would = "stays" if each.is_complete(plan.count) else f"would be given {plan.count}"
        click.echo(f"{each.stream}: {each.wanted}, {would}; on {', '.join(each.nodes) or 'the only server'}")
    _print_missing(plan)


def _print_done(plan: Planned, done: list[Changed], as_json: bool) -> None:
    if as_json:
        _print("changed" if done else "unchanged", plan, done)
        return
    _print_missing(plan)
    left = len(plan.streams) - len(done)
    click.echo(f"{len(done)} changed, {left} had {plan.count} already")
    click.echo(f"Set PYOCO_JETSTREAM_REPLICAS={plan.count} for gateways, workers and keepers, for what is made later.")


def _print_missing(plan: Planned) -> None:
    if plan.missing:
        click.echo(f"not on this NATS server: {', '.join(plan.missing)}", err=True)


def _print(result: str, plan: Planned, done: list[Changed]) -> None:
    document = {
        "result": result,
        "replicas": plan.count,
        "missing": list(plan.missing),
        "streams": [{"name": each.stream, "replicas": each.wanted, "nodes": list(each.nodes)} for each in plan.streams],
        "changed": [dataclasses.asdict(each) for each in done],
    }
    click.echo(json.dumps(document, indent=2))
