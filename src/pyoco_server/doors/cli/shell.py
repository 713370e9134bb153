"""What all commands share: exit codes, what an error looks like, an example in every `--help` (section 19.1).

    @click.command(cls=Command, example="pyoco-keeper --nats-url nats://127.0.0.1:4222")
    def cli(...) -> int | None: ...

    def main() -> None:
        run(cli, "pyoco-keeper")

A command returns its exit code, or nothing for 0. Import whatever is heavy inside the command, so that `--help` and
a typing error answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from pyoco_server.errors import CATALOGUE, PyocoError, UsageError

__all__ = ["Command", "Group", "outcome", "run"]

_FAILED = 1
_INTERRUPTED = 130


class Command(click.Command):
    """A command that shows how it is used: below `--help` (FLOW-428), and below what was wrong (FLOW-426)."""

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = example

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        _write_example(self.example, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            if "example:" not in str(error):
                error.add_note(_shown(self.example))
            raise


class Group(click.Group):
    """Several commands under one name."""

    command_class = Command

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        kwargs.setdefault("no_args_is_help", False)  # a missing command is an error like any other
        super().__init__(*args, **kwargs)
        self.example = example

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        _write_example(self.example, formatter)


def _write_example(example: str, formatter: click.HelpFormatter) -> None:
    with formatter.section("Example"):
        for line in example.splitlines():  # not write_text: a wrapped line cannot be pasted
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def _shown(example: str) -> str:
    return f"example: {example.splitlines()[0]}"


def run(command: click.Command, name: str) -> NoReturn:
    """The whole life of a process: read the arguments, do it, exit with 0, 1 or 130 (FLOW-423 to FLOW-425)."""
    sys.exit(outcome(command, name))


def outcome(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> int:
    """The exit code, after everything has been said. A defect of ours is raised, and Python shows where it arose."""
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _say(CATALOGUE[18].err_id, error.format_message(), [_shown(_example_of(error, command))])
        return _FAILED
    except PyocoError as error:
        _say(error.text.err_id, str(error), getattr(error, "__notes__", []))
        return _FAILED
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:  # whoever read us has gone: `… | head`
        _send_to_nowhere()
        return _FAILED
    return code if isinstance(code, int) else 0


def _example_of(error: click.ClickException, command: click.Command) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    nearest = context.command if context is not None else command
    return str(getattr(nearest, "example", ""))


def _say(err_id: str, message: str, notes: Sequence[str]) -> None:
    try:
        click.echo("\n".join([f"{err_id}: {message}", *notes]), err=True)
    except BrokenPipeError:
        _send_to_nowhere()


def _send_to_nowhere() -> None:
    """What still lies in the buffers would fail again at exit, with a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
