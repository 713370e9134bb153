"""What all commands share: exit codes, what an error looks like, an example in every `--help` (section 19.1).

    @click.command(cls=Command, example="pyoco-keeper --nats-url nats://127.0.0.1:4222")
    def cli(...) -> int | None: ...

    def main() -> None:
        run(cli, "pyoco-keeper")

A command returns its exit code, or nothing for 0. Import whatever is heavy inside the command, so that `--help` and
a typing error answer at once. A group of many commands is a `LazyGroup`: each of them is imported when it is called.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from pyoco_server.errors import CATALOGUE, DeploymentRefused, OtherLedger, PyocoError, UsageError
from pyoco_server.one_process import refuse_memory_stores

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["Command", "Group", "LazyCommand", "LazyGroup", "RenamedOption", "outcome", "run"]

_FAILED = 1
_REFUSED = 3
_INTERRUPTED = 130


def _with_short_help(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Accept `-h`, which many people try first; click defines only `--help`."""
    return kwargs | {
        "context_settings": {"help_option_names": ["-h", "--help"], **(kwargs.get("context_settings") or {})}
    }


class Command(click.Command):
    """A command that shows an example below `--help` (FLOW-428) and below usage errors (FLOW-426)."""

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        super().__init__(*args, **_with_short_help(kwargs))
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
        super().__init__(*args, **_with_short_help(kwargs))
        self.example = example

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        _write_example(self.example, formatter)


class RenamedOption(click.Option):
    """An option that is still understood under an older name, which help does not show (CLI-15)."""

    def __init__(self, declarations: Sequence[str], *, old_name: str, **kwargs: Any) -> None:
        super().__init__([*declarations, old_name], **kwargs)
        self._old_name = old_name

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names = self.opts
        self.opts = [name for name in names if name != self._old_name]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


@dataclass(frozen=True)
class LazyCommand:
    """A command that has not been imported yet."""

    #: The import path: `package.module:name`.
    place: str
    #: Its line in the group's help; a test compares it with the first sentence of the command's own help.
    summary: str
    #: The heading under which it is listed.
    section: str = "Commands"
    #: An old spelling: it works, and is not listed.
    hidden: bool = False

    def load(self) -> click.Command:
        module, _, name = self.place.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command), self.place
        return command


class _Shelf(MutableMapping[str, click.Command]):
    """Commands by name. The names are available without imports; a command is imported when it is accessed."""

    def __init__(self, entries: Mapping[str, LazyCommand]) -> None:
        self._held: dict[str, LazyCommand | click.Command] = dict(entries)

    def __getitem__(self, name: str) -> click.Command:
        held = self._held[name]
        return held.load() if isinstance(held, LazyCommand) else held

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._held[name] = command

    def __delitem__(self, name: str) -> None:
        del self._held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


class LazyGroup(Group):
    """Many commands under one name. Help and completion read them from a table and import none of them."""

    def __init__(self, *args: Any, entries: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, commands=_Shelf(entries), **kwargs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the listed names in the order of the table, which starts with the most common command."""
        return [name for name, entry in self.entries.items() if not entry.hidden]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = self.list_commands(ctx)
        width = max(map(len, listed))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in listed:
            entry = self.entries[name]
            sections.setdefault(entry.section, []).append((name.ljust(width), entry.summary))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only for shell completion

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        own = [CompletionItem(name, help=self.entries[name].summary) for name in names]
        return [*own, *click.Command.shell_complete(self, ctx, incomplete)]


def _write_example(example: str, formatter: click.HelpFormatter) -> None:
    with formatter.section("Example"):
        for line in example.splitlines():  # not write_text: a wrapped line cannot be pasted
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def _shown(example: str) -> str:
    return f"example: {example.splitlines()[0]}"


def run(command: click.Command, name: str) -> NoReturn:
    """Run a command and exit: parse the arguments, execute, exit with 0, 1, 3 or 130 (FLOW-423 to FLOW-425)."""
    _replace_closed_streams()
    refuse_memory_stores()
    sys.exit(outcome(command, name))


def _replace_closed_streams() -> None:
    """Redirect closed standard streams to /dev/null.

    Started with `>&-` there is no stdout, and the first socket would get its file descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open(mode, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - stays open
            setattr(sys, name, nowhere)


def outcome(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run the command, print its error and return the exit code. Unexpected exceptions are raised, with their
    traceback."""
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _say(CATALOGUE[18].err_id, error.format_message(), [_shown(_example_of(error, command))])
        return _FAILED
    except PyocoError as error:
        _say(error.text.err_id, str(error), getattr(error, "__notes__", []))
        return _REFUSED if isinstance(error, DeploymentRefused | OtherLedger) else _FAILED
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has exited: `… | head`
        _send_to_nowhere()
        return _FAILED
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _send_to_nowhere(sys.stdout)  # `… > file` on a full disk
        _say(CATALOGUE[32].err_id, f"{CATALOGUE[32].en} The output is incomplete.", [])
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


def _send_to_nowhere(*streams: TextIO) -> None:
    """Redirect the streams to /dev/null: flushing their buffers at exit would fail again, with a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams or (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
