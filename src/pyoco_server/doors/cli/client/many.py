"""Selects one item or all that match a filter, with a preview and a confirmation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from pyoco_server.doors.cli.client.output import note, print_table
from pyoco_server.errors import UsageError

__all__ = ["agree", "chosen", "many_options", "preview", "repeat_while_more"]

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN = 10


def many_options(what: str, limit_max: int = 10_000) -> Callable[[F], F]:
    """Add `--all-matching`, `--all`, `--yes` and `--limit`."""

    def decorate(function: F) -> F:
        for option in (
            click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
            click.option("--limit", type=click.IntRange(1, limit_max), help=f"Maximum number of {what}."),
            click.option("--all", "everything", is_flag=True, help=f"All {what}, without a filter."),
            click.option("--all-matching", is_flag=True, help=f"All {what} that match the filters."),
        ):
            function = option(function)
        return function

    return decorate


def chosen(
    one: tuple[str, str | None], filters: Mapping[str, Any], *, all_matching: bool, everything: bool
) -> dict[str, Any] | None:
    """Return the filter to send. None: a single item was named. Raises UsageError unless exactly one way was chosen.

    Empty values are refused: they usually come from an unset variable, and would match too much or nothing.
    """
    name, value = one
    given = {field: wanted for field, wanted in filters.items() if wanted is not None}
    for field, wanted in given.items():
        if wanted == "":
            raise UsageError(f"--{field.replace('_', '-')} must not be empty")
    if [value is not None, all_matching, everything].count(True) != 1:
        raise UsageError(f"give one of: {name}, --all-matching with a filter, or --all")
    if value is not None and given:
        raise UsageError(f"a filter goes with --all-matching, not with {name}")
    if all_matching and not given:
        raise UsageError("--all-matching needs a filter; --all takes everything")
    if everything and given:
        raise UsageError("--all takes no filter; use --all-matching")
    if value is not None:
        return None
    return {**given, "all": True} if everything else given


def agree(question: str, preview: Callable[[], None], *, yes: bool) -> None:
    """Return if the user agrees; `preview` first shows what is affected.

    Raises UsageError if there is no terminal to ask on, and ends the command if the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("there is no terminal to ask on: use --yes")
    preview()
    if not click.confirm(question, err=True):
        note("nothing was changed")
        raise click.exceptions.Exit(1)


def preview(what: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, is_all: bool) -> None:
    """Print on stderr how many items match, and the first of them. `is_all`: there are no more than `rows`."""
    note(f"{what} that match now: {len(rows)}{'' if is_all else ' or more'}")
    if rows:
        print_table(rows[:_SHOWN], columns, err=True)
        note("…" if len(rows) > _SHOWN else "")


def repeat_while_more(
    ask: Callable[[dict[str, Any]], Mapping[str, Any]], asked: dict[str, Any], counted: str
) -> dict[str, Any]:
    """Repeat the request while the server reports `more`, and add up the numbers.

    The server stops after a number of items or a time limit. Also stops if a round changed nothing: the rest cannot be
    done. A given limit is sent once and covers the complete operation.
    """
    total: dict[str, Any] = {}
    while True:
        answer = ask(asked)
        for name, value in answer.items():
            if isinstance(value, bool) or not isinstance(value, int | list):
                total[name] = value
            else:
                total[name] = total[name] + value if name in total else value
        if not answer["more"] or "limit" in asked or not answer[counted]:
            return total
        if answer.get("next_cursor") is not None:
            asked = {**asked, "cursor": answer["next_cursor"]}
