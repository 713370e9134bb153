"""The command group of `pyoco-client` and its global options. Each command is imported when it is called."""

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


#: In the order in which users need them; uploading a flow.yaml is the main route (FLOW-445).
COMMANDS = {
    "submit-yaml": _entry("submit:submit_yaml", "Upload a flow.yaml and run it.", "Submit"),
    "submit": _entry("submit:submit", "Run a flow that workers resolve by name.", "Submit"),
    "batch": _entry("batch:batch", "Submit many runs of named flows, one for each line of a file.", "Submit"),
    "rerun": _entry("submit:rerun", "Submit a run again, optionally with other params.", "Submit"),
    "exec": _entry("programs:exec_program", "Run a program on a worker, with arguments and files.", "Submit"),
    "submit-exec": _entry(
        "programs:submit_exec",
        "Like `exec`, but every argument is an option, for generated command lines.",
        "Submit",
    ),
    "get": _entry("runs:get", "Show a run.", "Runs"),
    "tasks": _entry("runs:tasks", "Show the tasks of a run.", "Runs"),
    "watch": _entry("watch:watch", "Follow a run until it ends.", "Runs"),
    "wait": _entry("watch:wait", "Wait for a run to finish and print its outcome.", "Runs"),
    "why": _entry("why:why", "Explain why a run has not started, what it is doing, or why it failed.", "Runs"),
    "list": _entry("runs:list_runs", "Show the newest runs.", "Runs"),
    "list-vnext": _entry("runs:list_runs_vnext", "Show a page of runs, and how to get the next one.", "Runs"),
    "artifacts": _entry("programs:artifacts", "List or fetch the files that a program has produced.", "Runs"),
    "cancel": _entry("cancel:cancel", "Cancel a run, or many.", "Runs"),
    "dlq": _entry("dead_letters:letters", "Show, redrive or delete dead letters.", "Runs"),
    "price": _entry("price:price", "Run packs that are paid for from a budget.", "Priced runs"),
    "budget": _entry("budget:budget", "Show the budget: available, reserved, charged and credited.", "Priced runs"),
    "queues": _entry("attention:queues", "Show the queues by tag, the longest first.", "Workers and wheels"),
    "workers": _entry("workers:list_workers", "Show the workers, the most recently seen first.", "Workers and wheels"),
    "worker-show": _entry("workers:show", "Show a worker, hidden or not.", "Workers and wheels"),
    "worker-hide": _entry("workers:hide", "Hide a worker in lists; it keeps taking jobs.", "Workers and wheels"),
    "worker-unhide": _entry("workers:unhide", "Show a worker in lists again.", "Workers and wheels"),
    "wheels": _entry("wheels:list_wheels", "Show the registered wheels.", "Workers and wheels"),
    "wheel-upload": _entry(
        "wheels:upload", "Register a wheel; its version must be newer than the registered ones.", "Workers and wheels"
    ),
    "wheel-download": _entry("wheels:download", "Download a wheel and verify its SHA-256.", "Workers and wheels"),
    "wheel-history": _entry(
        "wheels:history", "Show who uploaded and deleted which wheel, newest first.", "Workers and wheels"
    ),
    "wheel-delete": _entry(
        "wheels:delete", "Delete a wheel; workers uninstall it at their next sync.", "Workers and wheels"
    ),
    "attention": _entry("attention:attention", "Show what needs attention, the most urgent first.", "Server and setup"),
    "health": _entry("server:health", "Check whether the gateway is alive; exits with 1 if not.", "Server and setup"),
    "metrics": _entry("server:metrics", "Print the metrics, in the text format of Prometheus.", "Server and setup"),
    "config": _entry(
        "server:config", "Show which server and key are used, and where they come from.", "Server and setup"
    ),
    "completion": _entry(
        "server:completion", "Print the script that makes a shell complete this command.", "Server and setup"
    ),
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


def start() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters missing from the terminal's encoding must not raise
            stream.reconfigure(errors="backslashreplace")
    run(cli, "pyoco-client")
