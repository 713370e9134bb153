"""The `dlq` commands: show, redrive and delete dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.many import agree, chosen, many_options, preview, repeat_while_more
from pyoco_server.doors.cli.client.output import print_answer, print_json, print_page, print_table
from pyoco_server.doors.cli.client.run_ids import full_run_id, maybe_full_run_id
from pyoco_server.doors.cli.shell import Group
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.http_client import DlqPage, PyocoHttpClient

__all__ = ["dead_letters"]

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS = ("id", "timestamp", "reason", "flow_name", "tag", "run_id", "error")

_OF_A_DEAD_LETTER = ("--letter-id", "LETTER_ID", "The `id` of a letter in the list.")
_letter_id = arguments.named(*_OF_A_DEAD_LETTER)
_maybe_letter_id = arguments.named(*_OF_A_DEAD_LETTER, optional=True)


def _filter_options(function: F) -> F:
    for option in (
        click.option("--group", help="Letters of programs in this group."),
        click.option("--client-id", metavar="ID", help="Letters of programs of this client."),
        click.option("--exec", "exec", metavar="NAME", help="Letters of this program."),
        click.option("--run-id", metavar="RUN_ID", help="Letters of this run."),
        click.option("--tag", help="The routing tag, or one of the labels."),
        click.option("--flow", help="Exact flow name."),
        click.option("--reason", help="Exact reason."),
    ):
        function = option(function)
    return function


_up_to = click.option(
    "--up-to",
    type=click.IntRange(1),
    metavar="LETTER_ID",
    help="With many letters: keep those newer than this one.",
)


@click.group("dlq", cls=Group, example="pyoco-client dlq list --reason execution_error")
def dead_letters() -> None:
    """Show, redrive or delete dead letters."""


@dead_letters.command("list", example="pyoco-client dlq list --reason execution_error")
@_filter_options
@click.option("--limit", type=int, help="1 to 200. [default: 50]")
@click.option("--cursor", metavar="TOKEN", help="`next_cursor` of the previous page, with the same filters.")
@arguments.output_option("table")
@click.pass_obj
def list_letters(asked: Asked, /, output: str, **filters: Any) -> None:
    """Show dead letters, the newest first."""
    with calling(asked) as client:
        filters["run_id"] = maybe_full_run_id(client, filters["run_id"])
        page = _listed(client, **filters)
    print_page(page, output, _COLUMNS)


@dead_letters.command("show", example="pyoco-client dlq show 17")
@_letter_id
@arguments.output_option("text")
@click.pass_obj
def show_dead_letter(asked: Asked, letter_id: str, output: str) -> None:
    """Show a dead letter and the current state of its run."""
    with calling(asked) as client:
        print_answer(client.get_letter(letter_id), output)


@dead_letters.command("counts", example="pyoco-client dlq counts")
@arguments.output_option("table")
@click.pass_obj
def count_letters(asked: Asked, output: str) -> None:
    """Count dead letters by reason and flow."""
    with calling(asked) as client:
        counts = client.count_letters()
    if output == "json":
        print_json(counts)
    else:
        print_table(counts["groups"], ("count", "reason", "flow_name", "newest_at"))


@dead_letters.command(
    "redrive",
    example="""\
pyoco-client dlq redrive 17
pyoco-client dlq redrive 17 --param name=Ada
pyoco-client dlq redrive --all-matching --reason host_killed --yes""",
)
@_maybe_letter_id
@_filter_options
@many_options("letters")
@_up_to
@arguments.params_options
@arguments.output_option("text")
@click.pass_obj
def redrive(asked: Asked, /, letter_id: str | None, output: str, **given: Any) -> int:
    """Submit the work of a dead letter as a new run, and delete the letter.

    With many letters, the exit code is 1 if some could not be redriven.
    """
    params, yes, ask = given.pop("params"), given.pop("yes"), _chosen(letter_id, given)
    if ask is not None and params:
        raise UsageError("params are for one letter")
    with calling(asked) as client:
        if ask is None:
            assert letter_id is not None
            print_answer(client.redrive_letter(letter_id, **({"params": params} if params else {})), output)
            return 0
        ask = _agreed(client, "Redrive them?", _of_one_run(client, ask), yes=yes)
        answer = repeat_while_more(lambda each: client.redrive_letters(**each), ask, "redriven")
    print_answer(answer, output)
    return 1 if answer["failed"] else 0


@dead_letters.command("requeue", example="pyoco-client dlq requeue 17")
@_letter_id
@arguments.output_option("text")
@click.pass_obj
def requeue(asked: Asked, letter_id: str, output: str) -> None:
    """Submit the job of a program's dead letter again. Keeps the letter; repeating it returns the same new job."""
    with calling(asked) as client:
        print_answer(client.requeue_letter(letter_id), output)


@dead_letters.command(
    "delete",
    example="""\
pyoco-client dlq delete 17
pyoco-client dlq delete --all-matching --flow hello --yes""",
)
@_maybe_letter_id
@_filter_options
@many_options("letters")
@_up_to
@arguments.output_option("text")
@click.pass_obj
def delete(asked: Asked, /, letter_id: str | None, output: str, **given: Any) -> None:
    """Delete a dead letter, or many; their runs stay as they are."""
    yes, ask = given.pop("yes"), _chosen(letter_id, given)
    with calling(asked) as client:
        if ask is None:
            assert letter_id is not None
            print_answer(client.delete_letter(letter_id), output)
            return
        ask = _agreed(client, "Delete them for good?", _of_one_run(client, ask), yes=yes)
        print_answer(repeat_while_more(lambda each: client.delete_letters(**each), ask, "deleted"), output)


def _of_one_run(client: PyocoHttpClient, ask: dict[str, Any]) -> dict[str, Any]:
    """Complete the run id of a filter."""
    return {**ask, "run_id": full_run_id(client, ask["run_id"])} if "run_id" in ask else ask


def _listed(client: PyocoHttpClient, **filters: Any) -> DlqPage:
    return client.list_letters(exec_name=filters.pop("exec", None), **filters)


def _chosen(letter_id: str | None, given: dict[str, Any]) -> dict[str, Any] | None:
    """Return the request body for many letters. None: a single letter was named."""
    limit, up_to = given.pop("limit"), given.pop("up_to")
    bounds = ({} if limit is None else {"limit": limit}) | ({} if up_to is None else {"up_to": str(up_to)})
    ways = {name: given.pop(name) for name in ("all_matching", "everything")}
    ask = chosen(("--letter-id", letter_id), given, **ways)
    return ask if ask is None else {**ask, **bounds}


def _agreed(client: PyocoHttpClient, question: str, ask: dict[str, Any], *, yes: bool) -> dict[str, Any]:
    """Return the request, bounded by the newest letter shown: the user has not agreed to letters that arrive later."""
    newest: list[str] = []
    agree(question, lambda: newest.append(_preview(client, ask)), yes=yes)
    return {**ask, "up_to": newest[0]} if newest else ask


def _preview(client: PyocoHttpClient, ask: Mapping[str, Any]) -> str:
    """Show the matching letters and return the id of the newest one shown."""
    filters = {name: value for name, value in ask.items() if name not in {"all", "limit", "up_to"}}
    page = _listed(client, **filters, limit=200)
    shown = [item for item in page["items"] if "up_to" not in ask or int(item["id"]) <= int(ask["up_to"])]
    preview("Dead letters", shown, _COLUMNS, is_all=page["next_cursor"] is None)
    # no match: this bound excludes every letter but the first, which does not match either
    return shown[0]["id"] if shown else ask.get("up_to", "1")
