"""The `health`, `metrics`, `config` and `completion` commands."""

from __future__ import annotations

from typing import Any

import click

from pyoco_server.client.connection import Asked, resolve, shown_address
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling, fail, note_source
from pyoco_server.doors.cli.client.output import print_answer, print_fields, print_json
from pyoco_server.doors.cli.shell import Command

__all__ = ["completion", "config", "greet", "health", "metrics"]

_GREETING_SECONDS = 5.0
_COMPLETE_VARIABLE = "_PYOCO_CLIENT_COMPLETE"


@click.command("health", cls=Command, example="pyoco-client health\npyoco-client health --ready")
@click.option("--ready", is_flag=True, help="Check whether it can take work: NATS responds, and lists are complete.")
@arguments.output_option("text")
@click.pass_obj
def health(asked: Asked, ready: bool, output: str) -> None:
    """Check whether the gateway is alive; exits with 1 if not."""
    with calling(asked) as client:
        print_answer(client.ready() if ready else client.health(), output)


def greet(asked: Asked) -> None:
    """End the command with exit code 1, and say how to start a server, if none answers (CLI-12)."""
    import httpx  # noqa: PLC0415 - not for --help

    connection = resolve(asked)
    note_source(connection)
    try:
        httpx.get(f"{connection.server}/health", timeout=_GREETING_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL):
        address = shown_address(connection.server)
        fail(
            f"no server answers at {address}; to start one on this machine, with example flows:\n"
            "  pyoco-server up --with-examples\n"
            "then, in another terminal:\n"
            "  pyoco-client submit hello name=you --wait\n"
            "to use another server: --server URL or PYOCO_SERVER_URL; all commands: pyoco-client --help"
        )


@click.command("metrics", cls=Command, example="pyoco-client metrics")
@click.pass_obj
def metrics(asked: Asked) -> None:
    """Print the metrics, in the text format of Prometheus."""
    with calling(asked) as client:
        click.echo(client.get_metrics(), nl=False)


@click.command("config", cls=Command, example="pyoco-client config\npyoco-client --profile staging config")
@arguments.output_option("text")
@click.pass_obj
def config(asked: Asked, output: str) -> None:
    """Show which server and key are used, and where they come from.

    Only the id of the key is shown. No request is sent.
    """
    connection = resolve(asked)
    note_source(connection)
    values: dict[str, Any] = {
        "server": shown_address(connection.server),
        "api_key": _masked(connection.api_key),
        "api_key_header": connection.api_key_header,
        "timeout_sec": connection.timeout_sec,
    }
    sources = connection.origins
    if output != "json":
        found = "" if connection.has_config_file else " (not found)"
        file = {"config_file": f"{connection.config_file}{found}", "profile": connection.profile}
        shown = {name: f"{value}  (from {sources[name]})" for name, value in values.items() if value is not None}
        print_fields({**file, **shown})
        return
    print_json(
        {
            "config_file": str(connection.config_file),
            "config_file_found": connection.has_config_file,
            "profile": connection.profile,
            **{name: {"value": value, "from": sources[name]} for name, value in values.items()},
        }
    )


def _masked(key: str | None) -> str | None:
    """Return enough to tell two keys apart: the public id of our keys (`pyoco_<id>_<secret>`), nothing of other
    keys."""
    if key is None:
        return None
    parts = key.split("_", 2)
    return f"{parts[0]}_{parts[1]}_***" if len(parts) == 3 and parts[0] == "pyoco" else "***"


@click.command("completion", cls=Command, example='eval "$(pyoco-client completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete this command.

    bash: put `eval "$(pyoco-client completion bash)"` into ~/.bashrc. zsh: the same with zsh, into ~/.zshrc. fish:
    pyoco-client completion fish > ~/.config/fish/completions/pyoco-client.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class  # noqa: PLC0415 - only for this command

    from pyoco_server.doors.cli.client import cli  # noqa: PLC0415 - imports this module

    kind = get_completion_class(shell)
    assert kind is not None
    # Use the base class: the one for bash starts bash to query its version, even if another shell will read the script.
    click.echo(ShellComplete.source(kind(cli, {}, "pyoco-client", _COMPLETE_VARIABLE)))
