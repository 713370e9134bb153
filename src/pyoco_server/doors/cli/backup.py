"""`pyoco-server-admin backup` and `restore`: everything that is stored, into a folder and back."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
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

__all__ = ["backup", "restore", "run_until_told"]

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
    "--from", "folder", required=True, metavar="DIR", type=click.Path(), help="The folder that `backup` has written."
)


@click.group(cls=Group, example=_BACKUP_EXAMPLE, invoke_without_command=True, subcommand_metavar="[verify]")
@click.option("--to", "folder", metavar="DIR", type=click.Path(), help="Where to: a folder that is new or empty.")
@_as_json
@click.pass_context
def backup(context: click.Context, folder: str | None, as_json: bool) -> None:
    """Copy every stream and bucket into a folder, while everything runs; and the ledger, if it is a file.

    Runs, jobs, dead letters, keys, wheels, flow files, results: all that is stored in NATS, as it was at one moment.
    The folder holds hashed keys, the secret that signs addresses of results and the params of runs; only you may read
    it. Without backup.json in it, it is no backup.

    A ledger in PostgreSQL is not in it (pg_dump copies that), nor is what lies in Redis, SQS and S3.
    """
    if context.invoked_subcommand is not None:
        if folder is not None:
            raise UsageError(f"`backup verify` reads a backup; --to makes one; example: {_VERIFY_EXAMPLE}")
        return
    if folder is None:
        raise UsageError(f"--to is missing: the folder to write; example: {_BACKUP_EXAMPLE.splitlines()[0]}")
    config: NatsBackendConfig = context.obj()
    manifest = run_until_told(lambda: _backup(config, _path(folder), is_quiet=as_json))
    if manifest.missing:
        click.echo(f"not on this NATS server, and so not in the backup: {', '.join(manifest.missing)}", err=True)
    if manifest.ledger is None:
        _say_why_no_ledger(config, manifest, is_quiet=as_json)
    _tell(manifest, folder, "made", as_json)


@backup.command("verify", cls=Command, example=_VERIFY_EXAMPLE)
@_from
@_as_json
def verify(folder: str, as_json: bool) -> None:
    """Read a backup and check every file's length and digest. Needs no server."""
    manifest = run_until_told(lambda: _verify(_path(folder)))
    _tell(manifest, folder, "whole", as_json)


@click.command(cls=Command, example=_RESTORE_EXAMPLE)
@_from
@click.option("--only", multiple=True, metavar="NAME", help="This stream, or `ledger`, alone. May be repeated.")
@click.option("--no-ledger", is_flag=True, help="Leave the ledger as it is: it was not lost, and is newer.")
@click.option("--replace", is_flag=True, help="Remove what is there under these names first, for good.")
@click.option("--replicas", type=click.IntRange(1, 5), metavar="N", help="Keep so many copies of each message.")
@click.option("--force", is_flag=True, help="Also while gateways, keepers or workers use what is replaced.")
@click.option("--yes", is_flag=True, help="Do not ask before something is removed.")
@_as_json
@click.pass_obj
def restore(configured: Callable[[], NatsBackendConfig], /, *, folder: str, **given: Any) -> None:
    """Put a backup back. Checks all of it first; changes nothing that is there, unless told to replace it.

    A ledger in it becomes the file that PYOCO_LEDGER_URL names, or ledger.db in the data directory.

    Stop gateways, keepers and workers before. When it is interrupted, the same command once more goes on.
    """
    from pyoco_server.logs import redact_url  # noqa: PLC0415 - not for --help
    from pyoco_server.wiring.backend import backup_folder  # noqa: PLC0415

    wish = _Wish(**given)
    if wish.no_ledger and "ledger" in wish.only:
        raise UsageError("--no-ledger leaves the ledger as it is, and --only names it: say one of them")
    config, archive = configured(), backup_folder(_path(folder))
    plan = run_until_told(lambda: _plan(config, archive, wish))
    if plan.already:
        click.echo(f"restored before, and left as it is: {', '.join(plan.already)}", err=True)
    if (plan.lost or plan.replaces_ledger) and not wish.yes:  # outside of any event loop: it would not hear Ctrl-C
        _confirm(plan, redact_url(config.nats_url))
    run_until_told(lambda: _put_back(config, archive, plan, wish))
    done = dataclasses.replace(plan.manifest, streams=plan.streams, ledger=plan.ledger)
    _tell(done, folder, "restored", wish.as_json)


async def _backup(config: NatsBackendConfig, path: Path, *, is_quiet: bool) -> Manifest:
    import time  # noqa: PLC0415 - not for --help
    import uuid  # noqa: PLC0415

    from pyoco_server.actions.backup import backup as back_up  # noqa: PLC0415
    from pyoco_server.doors.cli.backup_view import Bars  # noqa: PLC0415
    from pyoco_server.wiring.backend import backup_folder, open_backups, versions  # noqa: PLC0415

    facts = {"backup_id": str(uuid.uuid4()), "made_by": versions().get("pyoco-server", "unknown")}
    priced = _priced()
    ledger = _ledger(config) if priced is not None else None
    async with open_backups(config, priced, _grid()) as streams:
        with Bars("copying", is_quiet=is_quiet) as bars:
            return await back_up(config, streams, backup_folder(path), facts, time.time, bars.show, ledger)


def _priced() -> PricedConfig | None:
    """None: there are no priced runs here."""
    from pyoco_server.config import priced_from_env  # noqa: PLC0415 - not for --help

    priced = priced_from_env()[0]
    return priced if priced.priced_enabled else None


def _grid() -> GridConfig:
    from pyoco_server.config import grid_from_env  # noqa: PLC0415 - not for --help

    return grid_from_env()


def _ledger(config: NatsBackendConfig) -> LedgerFile | None:
    """None: it is no file."""
    from pyoco_server.config import priced_from_env  # noqa: PLC0415 - not for --help
    from pyoco_server.wiring.backend import ledger_file  # noqa: PLC0415

    return ledger_file(config, priced_from_env()[0])


def _say_why_no_ledger(config: NatsBackendConfig, manifest: Manifest, *, is_quiet: bool) -> None:
    """A backup without its money must not be taken for a whole one. Where there are no priced runs, none is missed."""
    priced = _priced()
    if priced is None:
        return
    file = _ledger(config)
    if file is None:
        if not is_quiet:
            said = "the ledger is in PostgreSQL, and so not in the backup"
            click.echo(f"{said}: take it with pg_dump, right after", err=True)
    elif priced.ledger_url or any(stream.name == priced.pack_stream for stream in manifest.streams):
        said = f"there is no ledger at {file.path}, and so none in the backup"
        click.echo(f"{said}: --data-dir or PYOCO_LEDGER_URL says where it is", err=True)


async def _verify(path: Path) -> Manifest:
    from pyoco_server.actions.verify_backup import verify_backup  # noqa: PLC0415 - not for --help
    from pyoco_server.wiring.backend import backup_folder  # noqa: PLC0415

    return await verify_backup(backup_folder(path))


@dataclasses.dataclass(frozen=True)
class _Wish:
    """What a restore was asked for, besides the folder."""

    only: tuple[str, ...]
    no_ledger: bool
    replace: bool
    replicas: int | None
    force: bool
    yes: bool
    as_json: bool


async def _plan(config: NatsBackendConfig, archive: Archive, wish: _Wish) -> Restoration:
    from pyoco_server.actions.restore import plan_restore  # noqa: PLC0415 - not for --help
    from pyoco_server.wiring.backend import open_backups  # noqa: PLC0415

    only = wish.only
    if wish.no_ledger:
        only = tuple(stream.name for stream in (await archive.manifest()).only(only))
    async with open_backups(config, _priced(), _grid()) as streams:
        return await plan_restore(
            config,
            streams,
            archive,
            only,
            may_replace=wish.replace,
            may_disturb=wish.force,
            ledger=_ledger(config),
        )


async def _put_back(config: NatsBackendConfig, archive: Archive, plan: Restoration, wish: _Wish) -> None:
    from pyoco_server.actions.restore import restore as put_back  # noqa: PLC0415 - not for --help
    from pyoco_server.doors.cli.backup_view import Bars  # noqa: PLC0415
    from pyoco_server.wiring.backend import open_backups  # noqa: PLC0415

    async with open_backups(config, _priced(), _grid()) as streams:
        with Bars("restoring", is_quiet=wish.as_json) as bars:
            await put_back(streams, archive, plan, wish.replicas, bars.show, _ledger(config))
    if plan.manifest.ledger is not None and "ledger" in [*plan.names, *plan.already]:
        await _remember_restored(config)


async def _remember_restored(config: NatsBackendConfig) -> None:
    """The restored ledger is the one that gateways start with."""
    from pyoco_server.config import priced_from_env  # noqa: PLC0415 - not for --help
    from pyoco_server.wiring.ledger import remember_restored  # noqa: PLC0415

    before = await remember_restored(config, priced_from_env()[0])
    if before is not None:
        click.echo(f"this deployment used the ledger {before}; from now on it uses the restored one", err=True)


def _confirm(plan: Restoration, where: str) -> None:
    """Raises BackupFailed after a no, UsageError when there is nobody to ask, click.Abort when we are told to end."""
    removed = "".join(f"\n  {found.name}: {found.messages:,} messages" for found in plan.lost)
    if removed:
        click.echo(f"This removes from {where}, for good:{removed}", err=True)
    if plan.replaces_ledger:
        click.echo("This removes the ledger that is there, with every money fact in it, for good.", err=True)
    if not sys.stdin.isatty():
        raise UsageError("--replace asks before it removes something, and nobody is here to ask: say --yes, too")
    for number in _heard():
        signal.signal(number, signal.default_int_handler)
    if not click.confirm("Remove that, and restore the backup?", err=True):
        raise BackupFailed("nothing was changed")


def _path(folder: str) -> Path:
    from pathlib import Path  # noqa: PLC0415 - not for --help

    return Path(folder)


def run_until_told(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """To its end, or until Ctrl-C, SIGTERM or a closed terminal: then it tidies up, and ends as interrupted."""
    import asyncio  # noqa: PLC0415 - not for --help
    import logging  # noqa: PLC0415

    logging.getLogger().addHandler(logging.NullHandler())  # what matters is raised
    try:
        return asyncio.run(_until_told(work()))
    except asyncio.CancelledError as error:
        for note in getattr(error, "__notes__", []):
            click.echo(note, err=True)
        raise KeyboardInterrupt from error


async def _until_told(work: Awaitable[T]) -> T:
    import asyncio  # noqa: PLC0415 - not for --help

    task = asyncio.ensure_future(work)
    for number in _heard():
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


def _heard() -> list[signal.Signals]:
    """What ends us. Under `nohup` and in the background of a script some of them are ignored, and stay so."""
    told = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in told if signal.getsignal(number) != signal.SIG_IGN]


def _tell(manifest: Manifest, folder: str, what: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_document(manifest, folder, what), indent=2))
        return
    from pyoco_server.doors.cli.backup_view import table  # noqa: PLC0415 - not for --help

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
