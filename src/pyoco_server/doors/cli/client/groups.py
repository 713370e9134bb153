"""The groups of `pyoco-client` whose verbs are separate commands. Only the called verb is imported."""

from __future__ import annotations

from collections.abc import Mapping

import click

from pyoco_server.doors.cli.shell import LazyCommand, LazyGroup

__all__ = ["GROUPS", "RUN_VERBS", "flow", "program", "run", "wheel", "worker"]


def _verb(place: str, summary: str, section: str = "Commands") -> LazyCommand:
    return LazyCommand(f"{__package__}.{place}", summary, section)


#: The verbs of `run`, which also work without the word `run`.
RUN_VERBS = {
    "submit-yaml": _verb("submit:submit_yaml", "Upload a flow.yaml and run it.", "Submit"),
    "submit": _verb("submit:submit", "Run a flow that workers resolve by name.", "Submit"),
    "batch": _verb("batch:batch", "Submit many runs of named flows, one for each line of a file.", "Submit"),
    "rerun": _verb("submit:rerun", "Submit a run again, optionally with other params.", "Submit"),
    "get": _verb("runs:get", "Show a run.", "Runs"),
    "tasks": _verb("runs:tasks", "Show the tasks of a run.", "Runs"),
    "watch": _verb("watch:watch", "Follow a run until it ends.", "Runs"),
    "wait": _verb("watch:wait", "Wait for a run to finish and print its outcome.", "Runs"),
    "logs": _verb("logs:logs", "Print what a run has printed.", "Runs"),
    "why": _verb("why:why", "Explain why a run has not started, what it is doing, or why it failed.", "Runs"),
    "result": _verb("result:result", "Print the result of a completed run, or save it.", "Runs"),
    "list": _verb("runs:list_runs", "Show the newest runs.", "Runs"),
    "start": _verb("start:start", "Start a delayed run now.", "Runs"),
    "cancel": _verb("cancel:cancel", "Cancel a run, or many.", "Runs"),
}

#: The verbs of each group, by name.
GROUPS: Mapping[str, Mapping[str, LazyCommand]] = {
    "run": RUN_VERBS,
    "flow": {
        "list": _verb("flows:list_flows", "Show the flows that live workers announce, by name."),
        "show": _verb("flows:show", "Show a flow: its params with types and defaults, and who offers it."),
    },
    "worker": {
        "list": _verb("workers:list_workers", "Show the workers, the most recently seen first."),
        "show": _verb("workers:show", "Show a worker, hidden or not."),
        "hide": _verb("workers:hide", "Hide a worker in lists; it keeps taking jobs."),
        "unhide": _verb("workers:unhide", "Show a worker in lists again."),
    },
    "wheel": {
        "list": _verb("wheels:list_wheels", "Show the registered wheels."),
        "upload": _verb("wheels:upload", "Register a wheel; its version must be newer than the registered ones."),
        "download": _verb("wheels:download", "Download a wheel and verify its SHA-256."),
        "history": _verb("wheels:history", "Show who uploaded and deleted which wheel, newest first."),
        "delete": _verb("wheels:delete", "Delete a wheel; workers uninstall it at their next sync."),
    },
    "program": {
        "run": _verb("programs:exec_program", "Run a program on a worker, with arguments and files."),
        "submit": _verb(
            "programs:submit_exec", "Like `program run`, but every argument is an option, for generated command lines."
        ),
        "list": _verb("program_state:list_programs", "Show the programs that are queued, running or offered."),
        "state": _verb("program_state:state", "Show queues, running jobs, caps, doors and workers of programs."),
        "cap": _verb("program_state:cap", "Show or set how many programs of a client run at once."),
        "artifacts": _verb("programs:artifacts", "List or fetch the files that a program has produced."),
    },
}


@click.group(
    "run",
    cls=LazyGroup,
    entries=GROUPS["run"],
    example="pyoco-client run submit hello name=you --wait\npyoco-client run list --status FAILED",
)
def run() -> None:
    """Submit, follow, list and stop runs; its verbs also work without `run`."""


@click.group(
    "flow",
    cls=LazyGroup,
    entries=GROUPS["flow"],
    example="pyoco-client flow list\npyoco-client flow show measure",
)
def flow() -> None:
    """List the flows that workers announce, or show one."""


@click.group(
    "worker",
    cls=LazyGroup,
    entries=GROUPS["worker"],
    example="pyoco-client worker list\npyoco-client worker show worker-1",
)
def worker() -> None:
    """List workers, show or hide one."""


@click.group(
    "wheel",
    cls=LazyGroup,
    entries=GROUPS["wheel"],
    example="pyoco-client wheel list\npyoco-client wheel upload --wheel-file dist/my_tasks-1.2.0-py3-none-any.whl",
)
def wheel() -> None:
    """List, upload, download or delete wheels."""


@click.group(
    "program",
    cls=LazyGroup,
    entries=GROUPS["program"],
    example="pyoco-client program run calcA --file in.txt --wait --out results -- --n 3",
)
def program() -> None:
    """Run programs on workers, and fetch the files they produce."""
