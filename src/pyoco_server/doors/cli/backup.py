"""`pyoco-server-admin backup` and `restore`: copy everything that is stored into a folder, and back."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyoco_server.doors.cli.shell import Command, Group
from pyoco_server.errors import BackupFailed, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pyoco_server.actions.restore import Restoration
    from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
    from pyoco_server.core.backup import Manifest
    from pyoco_server.ports.backups.port import Archive, LedgerFile

__all__ = ["backup", "restore", "run_until_signalled"]

T = TypeVar("T")

_BACKUP_EXAMPLE = """\
pyoco-server-admin backup --to /var/backups/pyoco/monday
pyoco-server-admin --nats-url nats://n1:4222 backup --to monday --json
pyoco-server-admin backup verify --from monday"""
_VERIFY_EXAMPLE = "pyoco-server-admin backup verify --from monday"
_RESTORE_EXAMPLE = """\
pyoco-server-admin restore --from monday
pyoco-server-admin restore --from monday --replicas 3
pyoco-server-admin restore --from monday --no-ledger
pyoco-server-admin restore --from monday --replace --only KV_pyoco_auth"""

_as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_from = click.option(
    "--from", "folder", required=True, metavar="DIR", type=click.Path(), help="Folder written by `backup`."
)


@click.group(cls=Group, example=_BACKUP_EXAMPLE, invoke_without_command=True, subcommand_metavar="[verify]")
@click.option("--to", "folder", metavar="DIR", type=click.Path(), help="Folder to write; it must be new or empty.")
@_as_json
@click.pass_context
def backup(context: click.Context, folder: str | None, as_json: bool) -> None:
    """Copy every stream and bucket into a folder, while everything runs; and the ledger, if it is a file.

    This includes everything stored in NATS, as of one moment: runs, jobs, dead letters, keys, wheels, flow files,
    results. The folder contains hashed keys, the secret that signs result URLs, and the params of runs; only you may
    read it. Without backup.json it is not a complete backup.

    A ledger in PostgreSQL is not included (use pg_dump), nor is data in Redis, SQS and S3.
    """
    if context.invoked_subcommand is not None:
        if folder is not None:
            raise UsageError(f"`backup verify` reads a backup; --to makes one; example: {_VERIFY_EXAMPLE}")
        return
    if folder is None:
        raise UsageError(f"--to is missing: the folder to write; example: {_BACKUP_EXAMPLE.splitlines()[0]}")
    config: NatsBackendConfig = context.obj()
    manifest = run_until_signalled(lambda: _backup(config, _path(folder), is_quiet=as_json))
    if manifest.missing:
        click.echo(f"not on this NATS server, and so not in the backup: {', '.join(manifest.missing)}", err=True)
    if manifest.ledger is None:
        _explain_missing_ledger(config, manifest, is_quiet=as_json)
    _print_result(manifest, folder, "made", as_json)


@backup.command("verify", cls=Command, example=_VERIFY_EXAMPLE)
@_from
@_as_json
def verify(folder: str, as_json: bool) -> None:
    """Read a backup and check every file's length and digest. Needs no server."""
    manifest = run_until_signalled(lambda: _verify(_path(folder)))
    _print_result(manifest, folder, "whole", as_json)


@click.command(cls=Command, example=_RESTORE_EXAMPLE)
@_from
@click.option("--only", multiple=True, metavar="NAME", help="Restore only this stream, or `ledger`. May be repeated.")
@click.option(
    "--no-ledger", is_flag=True, help="Do not restore the ledger: the current one was not lost, and is newer."
)
@click.option("--replace", is_flag=True, help="Permanently remove existing data of these names first.")
@click.option("--replicas", type=click.IntRange(1, 5), metavar="N", help="Number of copies of each message.")
@click.option("--force", is_flag=True, help="Replace data even while gateways, keepers or workers use it.")
@click.option("--yes", is_flag=True, help="Do not ask before data is removed.")
@_as_json
@click.pass_obj
def restore(configured: Callable[[], NatsBackendConfig], /, *, folder: str, **given: Any) -> None:
    """Restore a backup. Checks it completely first, and changes no existing data unless --replace is given.

    A ledger in the backup is restored to the file named by PYOCO_LEDGER_URL, or to ledger.db in the data directory.

    Stop gateways, keepers and workers before. If the restore is interrupted, run the same command again to continue.
    """
    from pyoco_server.logs import redact_url
    from pyoco_server.wiring.operating import backup_folder

    options = _RestoreOptions(**given)
    if options.no_ledger and "ledger" in options.only:
        raise UsageError("--no-ledger keeps the ledger, and --only names it: use one of them")
    config, archive = configured(), backup_folder(_path(folder))
    plan = run_until_signalled(lambda: _plan(config, archive, options))
    if plan.already:
        click.echo(f"already restored, not changed: {', '.join(plan.already)}", err=True)
    if (plan.lost or plan.replaces_ledger) and not options.yes:  # outside of any event loop, which would block Ctrl-C
        _confirm(plan, redact_url(config.nats_url))
    run_until_signalled(lambda: _put_back(config, archive, plan, options))
    done = dataclasses.replace(plan.manifest, streams=plan.streams, ledger=plan.ledger)
    _print_result(done, folder, "restored", options.as_json)


async def _backup(config: NatsBackendConfig, path: Path, *, is_quiet: bool) -> Manifest:

    from pyoco_server.actions.backup import backup as back_up
    from pyoco_server.doors.cli.backup_view import Bars
    from pyoco_server.wiring.backend import versions
    from pyoco_server.wiring.operating import backup_folder, open_backups

    facts = {"backup_id": str(uuid.uuid4()), "made_by": versions().get("pyoco-server", "unknown")}
    priced = _priced()
    ledger = _ledger(config) if priced is not None else None
    async with open_backups(config, priced, _grid()) as streams:
        with Bars("copying", is_quiet=is_quiet) as bars:
            return await back_up(config, streams, backup_folder(path), facts, time.time, bars.show, ledger)


def _priced() -> PricedConfig | None:
    """Return the settings of priced runs. None: priced runs are disabled."""
    from pyoco_server.config import priced_from_env

    priced = priced_from_env()[0]
    return priced if priced.priced_enabled else None


def _grid() -> GridConfig:
    from pyoco_server.config import grid_from_env

    return grid_from_env()


def _ledger(config: NatsBackendConfig) -> LedgerFile | None:
    """Return the ledger file. None: the ledger is not a file."""
    from pyoco_server.config import priced_from_env
    from pyoco_server.wiring.operating import ledger_file

    return ledger_file(config, priced_from_env()[0])


def _explain_missing_ledger(config: NatsBackendConfig, manifest: Manifest, *, is_quiet: bool) -> None:
    """Explain why the ledger is missing, so that the backup is not taken for complete. Prints nothing without priced
    runs."""
    priced = _priced()
    if priced is None:
        return
    file = _ledger(config)
    if file is None:
        if not is_quiet:
            problem = "the ledger is in PostgreSQL, and so not in the backup"
            click.echo(f"{problem}: back it up with pg_dump, right after this", err=True)
    elif priced.ledger_url or any(stream.name == priced.pack_stream for stream in manifest.streams):
        problem = f"there is no ledger at {file.path}, and so none in the backup"
        click.echo(f"{problem}: name its location with --data-dir or PYOCO_LEDGER_URL", err=True)


async def _verify(path: Path) -> Manifest:
    from pyoco_server.actions.verify_backup import verify_backup
    from pyoco_server.wiring.operating import backup_folder

    return await verify_backup(backup_folder(path))


@dataclasses.dataclass(frozen=True)
class _RestoreOptions:
    """The options of a restore, besides the folder."""

    only: tuple[str, ...]
    no_ledger: bool
    replace: bool
    replicas: int | None
    force: bool
    yes: bool
    as_json: bool


async def _plan(config: NatsBackendConfig, archive: Archive, options: _RestoreOptions) -> Restoration:
    from pyoco_server.actions.restore import plan_restore
    from pyoco_server.wiring.operating import open_backups

    only = options.only
    if options.no_ledger:
        only = tuple(stream.name for stream in (await archive.manifest()).only(only))
    async with open_backups(config, _priced(), _grid()) as streams:
        return await plan_restore(
            config,
            streams,
            archive,
            only,
            may_replace=options.replace,
            may_disturb=options.force,
            ledger=_ledger(config),
        )


async def _put_back(config: NatsBackendConfig, archive: Archive, plan: Restoration, options: _RestoreOptions) -> None:
    from pyoco_server.actions.restore import restore as put_back
    from pyoco_server.doors.cli.backup_view import Bars
    from pyoco_server.wiring.operating import open_backups

    async with open_backups(config, _priced(), _grid()) as streams:
        with Bars("restoring", is_quiet=options.as_json) as bars:
            await put_back(streams, archive, plan, options.replicas, bars.show, _ledger(config))
    if plan.manifest.ledger is not None and "ledger" in [*plan.names, *plan.already]:
        await _remember_restored(config)


async def _remember_restored(config: NatsBackendConfig) -> None:
    """Make the restored ledger the one that the deployment uses."""
    from pyoco_server.config import priced_from_env
    from pyoco_server.wiring.ledger import remember_restored

    before = await remember_restored(config, priced_from_env()[0])
    if before is not None:
        click.echo(f"this deployment used the ledger {before}; from now on it uses the restored one", err=True)


def _confirm(plan: Restoration, where: str) -> None:
    """Ask for confirmation. Raises BackupFailed if the answer is no, UsageError without a terminal, click.Abort on a
    signal."""
    removed = "".join(f"\n  {found.name}: {found.messages:,} messages" for found in plan.lost)
    if removed:
        click.echo(f"This removes from {where}, for good:{removed}", err=True)
    if plan.replaces_ledger:
        click.echo("This removes the ledger that is there, with every money fact in it, for good.", err=True)
    if not sys.stdin.isatty():
        raise UsageError("--replace asks before it removes something, and there is no terminal to ask on: add --yes")
    for number in _stop_signals():
        signal.signal(number, signal.default_int_handler)
    if not click.confirm("Remove that, and restore the backup?", err=True):
        raise BackupFailed("nothing was changed")


def _path(folder: str) -> Path:

    return Path(folder)


def run_until_signalled(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run until done, or until Ctrl-C, SIGTERM or a closed terminal: then clean up and raise KeyboardInterrupt."""
    import asyncio
    import logging

    logging.getLogger().addHandler(logging.NullHandler())  # errors are raised, so logs are not needed
    try:
        return asyncio.run(_until_stopped(work()))
    except asyncio.CancelledError as error:
        for note in getattr(error, "__notes__", []):
            click.echo(note, err=True)
        raise KeyboardInterrupt from error


async def _until_stopped(work: Awaitable[T]) -> T:
    import asyncio

    task = asyncio.ensure_future(work)
    for number in _stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


def _stop_signals() -> list[signal.Signals]:
    """Return the signals that end the command. Ignored ones, as under `nohup` or in a background job, stay ignored."""
    stop_signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in stop_signals if signal.getsignal(number) != signal.SIG_IGN]


def _print_result(manifest: Manifest, folder: str, what: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_document(manifest, folder, what), indent=2))
        return
    from pyoco_server.doors.cli.backup_view import table

    click.echo(table(manifest, folder, what))


def _document(manifest: Manifest, folder: str, what: str) -> dict[str, object]:
    return {
        "result": what,
        "folder": folder,
        "backup_id": manifest.backup_id,
        "made_at": manifest.made_at,
        "made_by": manifest.made_by,
        "nats_version": manifest.nats_version,
        "bytes": manifest.size_bytes,
        "missing": list(manifest.missing),
        "ledger": {"bytes": manifest.ledger.size_bytes} if manifest.ledger is not None else None,
        "streams": [
            {
                "name": stream.name,
                "messages": stream.messages - stream.changes,
                "changes": stream.changes,
                "bytes": stream.size_bytes,
            }
            for stream in manifest.streams
        ],
    }
