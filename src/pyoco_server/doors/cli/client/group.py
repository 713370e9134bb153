"""The command group of `pyoco-client` and its global options. Each command is imported when it is called."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from typing import NoReturn

import click

from pyoco_server.client.connection import DEFAULT_SERVER, Asked
from pyoco_server.doors.cli.client.groups import GROUPS, RUN_VERBS
from pyoco_server.doors.cli.shell import LazyCommand, LazyGroup, run

__all__ = ["COMMANDS", "cli", "start"]


def _entry(place: str, summary: str, section: str) -> LazyCommand:
    return LazyCommand(f"{__package__}.{place}", summary, section)


def _old(group: str, verb: str) -> LazyCommand:
    """Return the entry of a verb under the name it had before there were groups (CLI-15)."""
    return replace(GROUPS[group][verb], hidden=True)


#: In the order in which users need them; uploading a flow.yaml is the main route (FLOW-445). A new group is one line
#: here and a table in `groups.py`.
COMMANDS = {
    **RUN_VERBS,
    "list-vnext": replace(
        _entry("runs:list_runs_vnext", "Show a page of runs, and how to get the next one.", "Runs"), hidden=True
    ),
    "run": _entry("groups:run", "Submit, follow, list and stop runs; its verbs also work without `run`.", "Groups"),
    "flow": _entry("groups:flow", "List the flows that workers announce, or show one.", "Groups"),
    "dlq": _entry("dead_letters:dead_letters", "Show, redrive or delete dead letters.", "Groups"),
    "worker": _entry("groups:worker", "List workers, show or hide one.", "Groups"),
    "wheel": _entry("groups:wheel", "List, upload, download or delete wheels.", "Groups"),
    "program": _entry("groups:program", "Run programs on workers, and fetch the files they produce.", "Groups"),
    "schedule": _entry("schedules:schedule", "Run flows, programs and packs by the clock.", "Groups"),
    "price": _entry("price:price", "Run packs that are paid for from a budget.", "Groups"),
    "budget": _entry(
        "budget:budget", "Show the budget: available, reserved, charged and credited.", "Server and setup"
    ),
    "queues": _entry("attention:queues", "Show the queues by tag, the longest first.", "Server and setup"),
    "attention": _entry("attention:attention", "Show what needs attention, the most urgent first.", "Server and setup"),
    "health": _entry("server:health", "Check whether the gateway is alive; exits with 1 if not.", "Server and setup"),
    "metrics": _entry("server:metrics", "Print the metrics, in the text format of Prometheus.", "Server and setup"),
    "config": _entry(
        "server:config", "Show which server and key are used, and where they come from.", "Server and setup"
    ),
    "completion": _entry(
        "server:completion", "Print the script that makes a shell complete this command.", "Server and setup"
    ),
    "exec": _old("program", "run"),
    "submit-exec": _old("program", "submit"),
    "artifacts": _old("program", "artifacts"),
    "flows": _old("flow", "list"),
    "workers": _old("worker", "list"),
    "worker-show": _old("worker", "show"),
    "worker-hide": _old("worker", "hide"),
    "worker-unhide": _old("worker", "unhide"),
    "wheels": _old("wheel", "list"),
    "wheel-upload": _old("wheel", "upload"),
    "wheel-download": _old("wheel", "download"),
    "wheel-history": _old("wheel", "history"),
    "wheel-delete": _old("wheel", "delete"),
}


def _profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the profiles for shell completion. An unreadable file yields none: completion must not print errors."""
    import os  # noqa: PLC0415 - only for shell completion

    from pyoco_server.client.config_file import find_file, read_file  # noqa: PLC0415
    from pyoco_server.errors import UsageError  # noqa: PLC0415

    try:
        read = read_file(find_file(os.environ)[0])
    except UsageError:
        return []
    return [name for name in (read[0].profiles if read else ()) if name.startswith(incomplete)]


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    example="""\
pyoco-client submit-yaml --workflow-file flow.yaml --flow-name main
pyoco-client submit hello name=you --wait""",
    context_settings={"max_content_width": 110},
    invoke_without_command=True,
)
@click.version_option(package_name="pyoco-server")
@click.option(
    "--server",
    metavar="URL",
    help=f"The gateway. [env: PYOCO_SERVER_URL; default: the server on this machine, or {DEFAULT_SERVER}]",
    show_default=False,
)
@click.option(
    "--api-key",
    metavar="KEY",
    help="API key. Other users can see it in the process list: prefer PYOCO_API_KEY or the config file."
    " [env: PYOCO_API_KEY]",
)
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=_profiles,
    help="Use server and key of this profile in the config file. [env: PYOCO_PROFILE]",
)
@click.pass_context
def cli(context: click.Context, server: str | None, api_key: str | None, profile: str | None) -> None:
    """Submit work to a pyoco-server and inspect it.

    Results are JSON on stdout, everything else goes to stderr. The exit code is 0 on success, 1 if something went
    wrong, 2 if a program that was waited for did not complete, and 130 after Ctrl-C.

    Server and key may also be set in ~/.config/pyoco/client.toml, see `pyoco-client config`.
    """
    context.obj = Asked(server, api_key, profile)
    if context.invoked_subcommand is None:
        if not sys.stdout.isatty():
            context.fail("Missing command.")
        from pyoco_server.doors.cli.client.server import greet  # noqa: PLC0415 - httpx

        greet(context.obj)
        click.echo(context.get_help())


def start() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters missing from the terminal's encoding must not raise
            stream.reconfigure(errors="backslashreplace")
    run(cli, "pyoco-client")
