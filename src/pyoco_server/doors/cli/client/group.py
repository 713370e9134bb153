"""The commands of `pyoco-client`, and what stands before them. Each is imported when it is called."""

from __future__ import annotations

import io
import sys
from typing import NoReturn

import click

from pyoco_server.client.connection import DEFAULT_SERVER, Asked
from pyoco_server.doors.cli.shell import Entry, LazyGroup, run

__all__ = ["COMMANDS", "cli", "start"]


def _entry(place: str, summary: str, section: str) -> Entry:
    return Entry(f"{__package__}.{place}", summary, section)


#: In the order people meet them; uploading a flow.yaml is the main route (FLOW-445).
COMMANDS = {
    "submit-yaml": _entry("submit:submit_yaml", "Upload a flow.yaml and run it.", "Submit"),
    "submit": _entry("submit:submit", "Run a flow that the workers know by name.", "Submit"),
    "batch": _entry("batch:batch", "Submit many runs of named flows, one for each line of a file.", "Submit"),
    "rerun": _entry("submit:rerun", "Run the same submission again, with other params if you like.", "Submit"),
    "exec": _entry("programs:exec_program", "Run a program on a worker, with arguments and files.", "Submit"),
    "submit-exec": _entry(
        "programs:submit_exec",
        "The same as `exec`, for those who build command lines: every part has an option.",
        "Submit",
    ),
    "get": _entry("runs:get", "Show a run.", "Runs"),
    "tasks": _entry("runs:tasks", "Show the tasks of a run.", "Runs"),
    "watch": _entry("watch:watch", "Follow a run until it has ended.", "Runs"),
    "wait": _entry("watch:wait", "Return when a run has ended, and print how.", "Runs"),
    "why": _entry("why:why", "Say why a run has not begun, what it is doing, or why it failed.", "Runs"),
    "list": _entry("runs:list_runs", "Show the newest runs.", "Runs"),
    "list-vnext": _entry("runs:list_runs_vnext", "Show a page of runs, and how to get the next one.", "Runs"),
    "artifacts": _entry("programs:artifacts", "Show what a program has left behind, or fetch it.", "Runs"),
    "cancel": _entry("cancel:cancel", "Ask for a run to be stopped, or for many.", "Runs"),
    "dlq": _entry("dead_letters:letters", "Look at dead letters, redrive or delete them.", "Runs"),
    "price": _entry("price:price", "Run packs that are paid for from a budget.", "Priced runs"),
    "budget": _entry(
        "budget:budget", "Show what is left to spend, what is set aside, charged and credited.", "Priced runs"
    ),
    "queues": _entry("attention:queues", "Show what waits, by tag, the longest queues first.", "Workers and wheels"),
    "workers": _entry("workers:list_workers", "Show the workers, those heard of last first.", "Workers and wheels"),
    "worker-show": _entry("workers:show", "Show a worker, hidden or not.", "Workers and wheels"),
    "worker-hide": _entry("workers:hide", "Leave a worker out of lists; it goes on taking jobs.", "Workers and wheels"),
    "worker-unhide": _entry("workers:unhide", "Show a worker in lists again.", "Workers and wheels"),
    "wheels": _entry("wheels:list_wheels", "Show the registered wheels.", "Workers and wheels"),
    "wheel-upload": _entry(
        "wheels:upload", "Register a wheel; its version must be newer than the registered ones.", "Workers and wheels"
    ),
    "wheel-download": _entry(
        "wheels:download", "Fetch a wheel; what arrives is compared with its SHA-256.", "Workers and wheels"
    ),
    "wheel-history": _entry(
        "wheels:history", "Show who uploaded and deleted which wheel, newest first.", "Workers and wheels"
    ),
    "wheel-delete": _entry(
        "wheels:delete", "Delete a wheel; workers uninstall it with their next look.", "Workers and wheels"
    ),
    "attention": _entry("attention:attention", "Say what needs attention, the most urgent first.", "Server and setup"),
    "health": _entry("server:health", "Ask whether the gateway is alive; ends with 1 when not.", "Server and setup"),
    "metrics": _entry("server:metrics", "Print the metrics, in the text format of Prometheus.", "Server and setup"),
    "config": _entry(
        "server:config", "Show which server and key are in force, and where they come from.", "Server and setup"
    ),
    "completion": _entry(
        "server:completion", "Print the script that makes a shell complete this command.", "Server and setup"
    ),
}


def _profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell. A file that cannot be read has no profiles: a completion does not complain."""
    import os  # noqa: PLC0415 - only for a shell that asks

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
    example="pyoco-client submit-yaml --workflow-file flow.yaml --flow-name main",
    context_settings={"max_content_width": 110},
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
    help="Other users of this machine can see it in the process list: better PYOCO_API_KEY, or the config file."
    " [env: PYOCO_API_KEY]",
)
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=_profiles,
    help="Server and key under this name in the config file. [env: PYOCO_PROFILE]",
)
@click.pass_context
def cli(context: click.Context, server: str | None, api_key: str | None, profile: str | None) -> None:
    """Ask a pyoco-server for work, and look at it.

    Results are JSON on stdout, everything else goes to stderr. The exit code is 0, 1 when something went wrong, 2 when
    a program that was waited for did not complete, and 130 after Ctrl-C.

    Server and key may also stand in ~/.config/pyoco/client.toml, see `pyoco-client config`.
    """
    context.obj = Asked(server, api_key, profile)


def start() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an alphabet that lacks a letter is no reason to stop
            stream.reconfigure(errors="backslashreplace")
    run(cli, "pyoco-client")
