"""Arguments that several commands take, and how text becomes values."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from pyoco_server.core.states import UNKNOWN, RunState
from pyoco_server.errors import UsageError

__all__ = [
    "INCLUDES",
    "KINDS",
    "RUN_STATUSES",
    "file_text",
    "json_object",
    "labels",
    "maybe_run_id",
    "merged_inputs",
    "merged_params",
    "named",
    "output_option",
    "params_options",
    "params_words",
    "run_id",
    "strict_json",
    "words",
]

F = TypeVar("F", bound=Callable[..., Any])

INCLUDES = ("records", "full", "all")
KINDS = ("flow", "exec", "pack")
RUN_STATUSES = (*RunState, UNKNOWN)


def words(*known: str) -> dict[str, Any]:
    """Return the completions of an option. Other values are passed on: a newer server may accept them."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in known if word.lower().startswith(incomplete.lower())]

    return {"shell_complete": complete}


def named(option: str, metavar: str, help_text: str, *, optional: bool = False) -> Callable[[F], F]:
    """Declare a required name that is given as an option or as a positional argument: `get --run-id ID`, `get ID`.

    The command receives it under the option's name. With `optional` the name may be missing, and is then None.
    """
    field = option.lstrip("-").replace("-", "_")

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_name(*args: Any, **kwargs: Any) -> Any:
            by_option, by_word = kwargs.pop(f"{field}_option"), kwargs.pop(f"{field}_word")
            if by_option is not None and by_word is not None:
                raise UsageError(f"{option} {by_option} and {by_word}: give one of them")
            name = by_word if by_option is None else by_option
            if name is None and not optional:
                raise UsageError(f"Missing option '{option}'.")
            if name == "":
                raise UsageError(f"{option} must not be empty")
            return function(*args, **{field: name}, **kwargs)

        with_option = click.option(option, f"{field}_option", metavar=metavar, help=help_text)(with_name)
        return cast(F, click.argument(f"{field}_word", metavar=f"[{metavar}]", required=False)(with_option))

    return decorate


_OF_A_RUN = ("--run-id", "RUN_ID", "Run id.")
run_id = named(*_OF_A_RUN)
maybe_run_id = named(*_OF_A_RUN, optional=True)


def output_option(readable: str) -> Callable[[F], F]:
    """Pass `output` to the command: `json`, or the name of the readable view. By default JSON in a pipe, and the
    readable view on a terminal (CLI-3).

    `readable` is `table` for lists and `text` for single objects; both words are accepted everywhere.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_output(*args: Any, **kwargs: Any) -> Any:
            given = kwargs.pop("output")
            return function(*args, output=given or (readable if sys.stdout.isatty() else "json"), **kwargs)

        decorated: Any = with_output
        for option in (
            click.option("--json", "output", flag_value="json", help="The same as --output json."),
            click.option(
                "--output",
                type=click.Choice(["json", "table", "text"]),
                help=f"[default: {readable} on a terminal, json elsewhere]",
            ),
        ):
            decorated = option(decorated)
        return cast(F, decorated)

    return decorate


def params_options(function: F) -> F:
    """Merge the three sources of params and pass them to the command as one dict, `params` (FLOW-446)."""

    @functools.wraps(function)
    def with_params(*args: Any, **kwargs: Any) -> Any:
        given = (kwargs.pop("params_file"), kwargs.pop("params"), kwargs.pop("param"))
        return function(*args, params=merged_params(*given), **kwargs)

    decorated: Any = with_params
    for option in (
        click.option("--param", multiple=True, metavar="KEY=VALUE", help="One param, as JSON or text; wins over both."),
        click.option("--params", metavar="JSON", help="A JSON object; wins over the file."),
        click.option("--params-file", metavar="FILE", help="A file that holds a JSON object; - for stdin."),
    ):
        decorated = option(decorated)
    return cast(F, decorated)


def merged_params(file: str | None, text: str | None, pairs: Sequence[str]) -> dict[str, Any]:
    """Merge the file, then the text, then each pair; later ones win, key by key (FLOW-446)."""
    merged: dict[str, Any] = {}
    if file is not None:
        merged |= json_object(file_text(file), f"--params-file {file}")
    if text is not None:
        merged |= json_object(text, "--params")
    return merged | _paired("--param", pairs)


def params_words(words: Sequence[str]) -> dict[str, Any]:
    """Return the params that were given as words, `name=you n=3`."""
    return _paired("", words)


def merged_inputs(file: str | None, pairs: Sequence[str]) -> dict[str, Any]:
    """Merge the file, then each pair; later ones win, key by key."""
    merged = {} if file is None else json_object(file_text(file), f"--inputs-file {file}")
    return merged | _paired("--input", pairs)


def _paired(option: str, pairs: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {pair!r} must be KEY=VALUE, for example name=you".strip())
        found[key] = _value(value)
    return found


def labels(text: str | None) -> list[str] | None:
    """Split `a, b` into a list. None: the option was not given."""
    return None if text is None else [word for word in (each.strip() for each in text.split(",")) if word]


def file_text(path: str) -> str:
    """Return the content of the file; `-` reads stdin."""
    try:
        if path == "-":
            return sys.stdin.buffer.read().decode()
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error


def json_object(text: str, where: str) -> dict[str, Any]:
    try:
        document = strict_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f'{where} must be a JSON object, for example {{"name": "you"}}')
    return document


def strict_json(text: str) -> Any:
    """Parse JSON. Also raises ValueError for NaN and the infinities, which Python accepts and JSON does not define."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON value")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large a number")
    return number


def _value(text: str) -> Any:
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return text
