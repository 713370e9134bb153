"""`pyoco-server-admin program`: operator commands that work directly on NATS.

They need neither a gateway nor an API key: anyone who can reach NATS may run them. `pyoco-grid state`, `cap`, `acl` and
`dlq` are their old spellings (CLI-15); dead letters are under `pyoco-client dlq` now.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyoco_server.doors.cli.shell import Command, Group
from pyoco_server.errors import DeadLetterNotFound, UsageError

if TYPE_CHECKING:
    from pyoco_server.ports.acl.port import AclKind
    from pyoco_server.ports.backend import OperatorBackend
    from pyoco_server.ports.dead_letters.port import StoredDeadLetter

__all__ = ["acl", "cap", "dead_letters", "program", "state"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_KIND = click.Choice(["client", "worker"])


def _nats_option(function: F) -> F:
    option = click.option(
        "--nats", "nats_url", metavar="URL[,URL]", hidden=True, help="The old spelling of --nats-url of the command."
    )
    return option(function)


def _group_option(function: F) -> F:
    option = click.option("--group", metavar="G", help="The group. [env: EXEC_GROUP; default: default]")
    return option(function)


def _tenant_option(function: F) -> F:
    option = click.option(
        "--tenant", metavar="T", help="The client of this tenant. [default: the one without a tenant]"
    )
    return option(function)


def _client(client_id: str, tenant: str | None) -> str:
    """The client within its tenant. Raises GridRefused, UsageError."""
    from pyoco_server.core.names import is_tag
    from pyoco_server.core.programs.names import check_client_id, client_key

    if tenant is not None and not is_tag(tenant):
        raise UsageError("--tenant must be 1 to 128 letters, digits, '_' or '-'; example: --tenant team-a")
    return client_key(check_client_id(client_id), tenant)


def _with(nats_url: str | None, group: str | None, work: Callable[[OperatorBackend], Awaitable[T]]) -> T:
    """Run `work` on an operator backend. Raises Unavailable, DeploymentRefused, SettingError, and what `work`
    raises."""
    import asyncio
    import logging

    from pyoco_server.config import grid_from_env
    from pyoco_server.doors.cli.local_server import settle_nats
    from pyoco_server.wiring.backend import open_operator_backend

    logging.getLogger().addHandler(logging.NullHandler())  # errors are raised, so logs are not needed
    given = click.get_current_context().find_root().params
    nats_url = nats_url or given.get("nats_url")
    option = "--nats-url" if "nats_url" in given else "--nats"
    data_dir = {"data_dir": given["data_dir"]} if given.get("data_dir") else {}
    config = settle_nats(nats_url=nats_url, option=option, **data_dir).config
    grid = grid_from_env(exec_group=group)

    async def run_work() -> T:
        async with open_operator_backend(config, grid) as backend:
            return await work(backend)

    return asyncio.run(run_work())


def _print_json(document: object) -> None:

    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _group_of(backend: OperatorBackend) -> str:
    assert backend.programs is not None
    return backend.programs.config.exec_group


@click.command(cls=Command, example="pyoco-server-admin program state --group g1 --json")
@click.option("--group", metavar="G", help="Show only this group. [default: all known groups]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, as `GET /exec/state` returns it.")
@_nats_option
def state(*, group: str | None, as_json: bool, nats_url: str | None) -> None:
    """Show queues, running jobs, caps, doors and replicas.

    Counts every message of the queue, which takes seconds for a million messages; `GET /exec/state` of a gateway is
    faster. Only a gateway reports the 95th percentiles of run times.
    """
    from pyoco_server.actions.programs.state import exec_state
    from pyoco_server.doors.cli.grid.state_view import lines_of
    from pyoco_server.doors.http.shown_grid import document_of

    async def read(backend: OperatorBackend) -> dict[str, Any]:
        return document_of(await exec_state(backend, group), backend.config.worker_disconnect_timeout_sec)

    document = _with(nats_url, group, read)
    if as_json:
        _print_json(document)
    else:
        for line in lines_of(document):
            click.echo(line)


@click.group(cls=Group, example="pyoco-server-admin program cap set clientA 8")
def cap() -> None:
    """Show or set how many programs of a client run at once."""


@cap.command("get", example="pyoco-server-admin program cap get clientA --group g1")
@click.argument("client_id")
@_tenant_option
@_group_option
@_nats_option
def get_cap(client_id: str, tenant: str | None, group: str | None, nats_url: str | None) -> None:
    """Print the cap of a client, its source, and how much of it is used."""
    from pyoco_server.actions.programs.reach import programs_of
    from pyoco_server.actions.programs.show_cap import show_cap

    client = _client(client_id, tenant)

    async def read(backend: OperatorBackend) -> dict[str, Any]:
        return vars(show_cap(programs_of(backend), _group_of(backend), client))

    _print_json(_with(nats_url, group, read))


@cap.command(
    "set",
    example="pyoco-server-admin program cap set clientA 8 --tenant team-a",
)
@click.argument("client_id")
@click.argument("jobs", type=click.IntRange(1, 10_000))
@_tenant_option
@_group_option
@_nats_option
def put_cap(client_id: str, jobs: int, tenant: str | None, group: str | None, nats_url: str | None) -> None:
    """Set how many jobs of a client may run at once, until the client requests another cap. Running jobs continue."""
    from pyoco_server.actions.programs.reach import programs_of
    from pyoco_server.actions.programs.set_cap import set_cap
    from pyoco_server.actions.programs.show_cap import show_cap

    client = _client(client_id, tenant)

    async def change(backend: OperatorBackend) -> dict[str, Any]:
        await set_cap(backend, _group_of(backend), client, jobs, "http")
        return vars(show_cap(programs_of(backend), _group_of(backend), client))

    document = _with(nats_url, group, change)
    _print_json(document)
    if document["cap"] != jobs:
        click.echo(f"the ACL record of {client_id} allows no more than {document['cap']}", err=True)


@click.group(
    cls=Group,
    example="pyoco-server-admin program acl set client clientA --key k1 --exec 'calc*' --max-cap 4",
)
def acl() -> None:
    """Manage who may submit and who may run which programs. Takes effect with EXEC_AUTH=api_key."""


@acl.command(
    "set",
    example="pyoco-server-admin program acl set client clientA --key k1 --exec 'calc*' --exec render --max-cap 4\n"
    "pyoco-server-admin program acl set worker w1 --key k2 --exec '*'",
)
@click.argument("kind", type=_KIND)
@click.argument("of", metavar="ID")
@click.option(
    "--key", "keys", multiple=True, required=True, metavar="KEY_ID", help="An API key, by its id; repeatable."
)
@click.option("--exec", "execs", multiple=True, required=True, metavar="PATTERN", help="Programs; repeatable.")
@click.option("--max-cap", type=click.IntRange(1, 10_000), help="For clients: maximum number of concurrent jobs.")
@click.option(
    "--in-group", "groups", multiple=True, metavar="PATTERN", help="For clients: groups; repeatable. [default: *]"
)
@_nats_option
def set_acl(kind: str, of: str, nats_url: str | None, **given: Any) -> None:
    """Write the record of a client or a worker, replacing an existing one. It takes effect immediately."""
    from pyoco_server.actions.programs.acl import read_record, shown_record
    from pyoco_server.actions.programs.reach import programs_of

    subject = _subject(kind, of)
    members: dict[str, Any] = {"api_key_ids": list(given["keys"]), "execs": list(given["execs"])}
    members |= {} if given["max_cap"] is None else {"max_cap": given["max_cap"]}
    members |= {"groups": list(given["groups"])} if given["groups"] else {}
    record = read_record(subject[0], members)

    async def change(backend: OperatorBackend) -> dict[str, Any]:
        await programs_of(backend).acl.put(*subject, record)
        return shown_record(*subject, record)

    _print_json(_with(nats_url, None, change))


@acl.command("get", example="pyoco-server-admin program acl get client clientA")
@click.argument("kind", type=_KIND)
@click.argument("of", metavar="ID")
@_nats_option
def get_acl(kind: str, of: str, nats_url: str | None) -> None:
    """Print the record of a client or a worker."""
    from pyoco_server.actions.programs.acl import shown_record
    from pyoco_server.actions.programs.reach import programs_of

    subject = _subject(kind, of)

    async def read(backend: OperatorBackend) -> dict[str, Any]:
        record = programs_of(backend).acl.find(*subject)
        if record is None:
            raise _no_record(kind, of)
        return shown_record(*subject, record)

    _print_json(_with(nats_url, None, read))


@acl.command("list", example="pyoco-server-admin program acl list")
@_nats_option
def list_acl(nats_url: str | None) -> None:
    """Print every record, by kind and id."""
    from pyoco_server.actions.programs.acl import shown_record
    from pyoco_server.actions.programs.reach import programs_of

    async def read(backend: OperatorBackend) -> list[dict[str, Any]]:
        return [shown_record(*subject, record) for subject, record in programs_of(backend).acl.all().items()]

    _print_json(_with(nats_url, None, read))


@acl.command("delete", example="pyoco-server-admin program acl delete client clientA")
@click.argument("kind", type=_KIND)
@click.argument("of", metavar="ID")
@_nats_option
def delete_acl(kind: str, of: str, nats_url: str | None) -> None:
    """Delete a record: with EXEC_AUTH=api_key, no key may act as that client or worker any more."""
    from pyoco_server.actions.programs.reach import programs_of

    subject = _subject(kind, of)

    async def change(backend: OperatorBackend) -> dict[str, Any]:
        if not await programs_of(backend).acl.delete(*subject):
            raise _no_record(kind, of)
        return {"kind": kind, "id": of, "deleted": True}

    _print_json(_with(nats_url, None, change))


def _subject(kind: str, of: str) -> tuple[AclKind, str]:
    """Parse kind and id. Raises GridRefused."""
    from pyoco_server.actions.programs.acl import read_subject

    subject = read_subject(kind, of)
    assert subject is not None, "click knows the kinds"
    return subject


def _no_record(kind: str, of: str) -> Exception:
    from pyoco_server.core.programs.faults import Code, GridRefused

    return GridRefused(Code.NOT_FOUND, f"there is no record of {kind} {of}")


@click.group(cls=Group, example="pyoco-grid dlq list\npyoco-grid dlq requeue 17")
def dead_letters() -> None:
    """Show, requeue or delete dead letters of programs."""


@dead_letters.command("list", example="pyoco-grid dlq list --reason max_attempts --limit 10")
@click.option("--reason", help="Only letters with this reason.")
@click.option("--exec", "exec_name", metavar="NAME", help="Only letters of this program.")
@click.option("--client-id", metavar="ID", help="Only letters of this client.")
@click.option("--group", metavar="G", help="Only letters of this group. [default: all]")
@click.option(
    "--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Maximum number of letters."
)
@_nats_option
def list_letters(*, limit: int, nats_url: str | None, **wanted: str | None) -> None:
    """Print dead letters of programs, the newest first."""
    from pyoco_server.actions.programs.state import exec_dead_letters

    given = {name: value for name, value in wanted.items() if value is not None}

    async def read(backend: OperatorBackend) -> list[dict[str, Any]]:
        found = await exec_dead_letters(backend)
        fits = [each for each in found if all(getattr(each.dead_letter, name) == given[name] for name in given)]
        return [_shown(each) for each in reversed(fits[-limit:])]

    _print_json(_with(nats_url, None, read))


@dead_letters.command("show", example="pyoco-grid dlq show 17")
@click.argument("sequence", type=click.IntRange(min=1))
@_nats_option
def show_dead_letter(sequence: int, nats_url: str | None) -> None:
    """Print one dead letter, and whether it can be requeued."""
    from pyoco_server.actions.programs.requeue import can_requeue

    async def read(backend: OperatorBackend) -> dict[str, Any]:
        found = await _find(backend, sequence)
        return _shown(found) | {"requeueable": await can_requeue(backend, found.dead_letter)}

    _print_json(_with(nats_url, None, read))


@dead_letters.command("requeue", example="pyoco-grid dlq requeue 17")
@click.argument("sequence", type=click.IntRange(min=1))
@_nats_option
def requeue_letter(sequence: int, nats_url: str | None) -> None:
    """Submit its job again, as a new job of the same owner. Keeps the letter; repeating it creates no second job."""
    from pyoco_server.actions.programs.requeue import requeue
    from pyoco_server.core.run import Caller

    async def change(backend: OperatorBackend) -> dict[str, Any]:
        found = await _find(backend, sequence)
        owner = Caller(found.dead_letter.tenant_id, found.dead_letter.api_key_id)
        submitted = await requeue(backend, owner, found)
        run = submitted.run
        job_id = run.program.job_id if run.program is not None else None
        return {"run_id": run.run_id, "job_id": job_id, "duplicate": submitted.duplicate}

    _print_json(_with(nats_url, None, change))


@dead_letters.command("delete", example="pyoco-grid dlq delete 17")
@click.argument("sequence", type=click.IntRange(min=1))
@_nats_option
def delete_letter(sequence: int, nats_url: str | None) -> None:
    """Delete a dead letter permanently. Its run is not changed."""

    async def change(backend: OperatorBackend) -> dict[str, Any]:
        found = await _find(backend, sequence)
        await backend.dead_letters.delete(found.letter_id)
        return {"id": found.letter_id, "deleted": True}

    _print_json(_with(nats_url, None, change))


@click.group(
    "program",
    cls=Group,
    example="pyoco-server-admin program state\npyoco-server-admin program cap set clientA 8",
)
def program() -> None:
    """Show and operate programs: their queues, caps, and who may run what."""


for _command in (state, cap, acl):
    program.add_command(_command)


async def _find(backend: OperatorBackend, sequence: int) -> StoredDeadLetter:
    """Return the dead letter of a program. Raises DeadLetterNotFound, also for dead letters that are not of
    programs."""

    found = await backend.dead_letters.find(sequence)
    if found is None or not found.dead_letter.is_exec:
        raise DeadLetterNotFound(f"there is no dead letter {sequence} of a program")
    return found


def _shown(found: StoredDeadLetter) -> dict[str, Any]:
    """Return the public fields. The job is omitted: its arguments and files are confidential."""
    known = {name: value for name, value in vars(found.dead_letter).items() if value is not None and name != "job"}
    return {"id": found.letter_id, **known}
