"""`pyoco-client`: submit, read, list and cancel runs over HTTP (section 19.2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.doors.cli.shell import Group, run
from pyoco_server.errors import CATALOGUE, UsageError

if TYPE_CHECKING:
    import httpx

    from pyoco_server.http_client import PyocoHttpClient

__all__ = ["cli", "main"]

_run_id = click.option("--run-id", required=True, metavar="ID", help="The id that the submission was answered with.")


@click.group(cls=Group, example="pyoco-client submit-yaml --workflow-file flow.yaml --flow-name main")
@click.option(
    "--server",
    default="http://127.0.0.1:8000",
    show_default=True,
    envvar="PYOCO_SERVER_URL",
    metavar="URL",
    help="The gateway. [env: PYOCO_SERVER_URL]",
)
@click.option(
    "--api-key",
    envvar="PYOCO_API_KEY",
    metavar="KEY",
    help="Other users of this machine can see it in the process list: better PYOCO_API_KEY. [env: PYOCO_API_KEY]",
)
@click.pass_context
def cli(context: click.Context, server: str, api_key: str | None) -> None:
    """Ask a pyoco-server for work, and look at it."""
    context.obj = (server, api_key)


@cli.command("submit-yaml", example="pyoco-client submit-yaml --workflow-file flow.yaml --flow-name main")
@click.option("--workflow-file", required=True, type=click.Path(path_type=Path), help="The flow.yaml to run.")
@click.option("--flow-name", required=True, metavar="NAME", help="What the run is called.")
@click.option("--tag", default="default", show_default=True, help="Which workers may take it.")
@click.pass_obj
def submit_yaml(server: tuple[str, str | None], workflow_file: Path, flow_name: str, tag: str) -> int:
    """Upload a flow.yaml and run it."""
    try:
        text = workflow_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {workflow_file}: {error}") from error
    return _call(server, lambda client: client.submit_run_yaml(text, tag, flow_name))


@cli.command("submit", example="pyoco-client submit --flow-name hello --param name=you")
@click.option("--flow-name", required=True, metavar="NAME", help="A flow that the workers know.")
@click.option("--tag", help="Which workers may take it. [default: the server's default tag]")
@click.option("--tags", metavar="A,B", help="Labels to find it by.")
@click.option("--params-file", type=click.Path(path_type=Path), help="A file that holds a JSON object.")
@click.option("--params", metavar="JSON", help="A JSON object; wins over the file.")
@click.option("--param", multiple=True, metavar="KEY=VALUE", help="One param, as JSON or text; wins over both.")
@click.pass_obj
def submit(
    server: tuple[str, str | None],
    flow_name: str,
    tag: str | None,
    tags: str | None,
    params_file: Path | None,
    params: str | None,
    param: Sequence[str],
) -> int:
    """Run a flow that the workers know by name."""
    merged = _merged_params(params_file, params, param)
    labels = [label.strip() for label in tags.split(",")] if tags is not None else None
    return _call(server, lambda client: client.submit_run(flow_name, merged, tag, labels))


@cli.command("get", example="pyoco-client get --run-id ID --include records")
@_run_id
@click.option("--include", multiple=True, metavar="WHAT", help="`records`, `full` or `all`: with task records.")
@click.pass_obj
def get(server: tuple[str, str | None], run_id: str, include: Sequence[str]) -> int:
    """Show a run."""
    return _call(server, lambda client: client.get_run(run_id, list(include)))


@cli.command("tasks", example="pyoco-client tasks --run-id ID")
@_run_id
@click.pass_obj
def tasks(server: tuple[str, str | None], run_id: str) -> int:
    """Show the tasks of a run."""
    return _call(server, lambda client: client.get_tasks(run_id))


@cli.command("list", example="pyoco-client list --status FAILED --output table")
@click.option("--status", help="Exact status.")
@click.option("--flow", help="Exact flow name.")
@click.option("--tag", help="The routing tag, or one of the labels.")
@click.option("--limit", type=int, help="1 to 200. [default: 50]")
@click.option("--include", multiple=True, metavar="WHAT", help="`full`: whole snapshots.")
@click.option("--workflow-yaml-sha256", metavar="HEX", help="Runs of this flow.yaml.")
@click.option("--output", type=click.Choice(["json", "table"]), default="json", show_default=True)
@click.pass_obj
def list_runs(server: tuple[str, str | None], /, output: str, include: Sequence[str], **asked: Any) -> int:
    """Show the newest runs."""
    show = _print_table if output == "table" else _print
    return _call(server, lambda client: client.list_runs(include=list(include), **asked), show)


@cli.command("cancel", example="pyoco-client cancel --run-id ID --wait")
@_run_id
@click.option("--wait", is_flag=True, help="Return when the run has ended.")
@click.option("--timeout-sec", type=float, help="How long to wait. [default: 60]")
@click.pass_obj
def cancel(server: tuple[str, str | None], run_id: str, wait: bool, timeout_sec: float | None) -> int:
    """Ask for a run to be stopped."""
    return _call(server, lambda client: client.cancel_run(run_id, wait, timeout_sec))


def _call(
    server: tuple[str, str | None], ask: Callable[[PyocoHttpClient], Any], show: Callable[[Any], None] | None = None
) -> int:
    """One call; its result on stdout, or what went wrong on stderr (FLOW-427)."""
    import httpx  # noqa: PLC0415 - not for --help

    from pyoco_server.http_client import PyocoHttpClient  # noqa: PLC0415

    try:
        with PyocoHttpClient(server[0], api_key=server[1]) as client:
            result = ask(client)
    except httpx.HTTPStatusError as error:
        return _fail(_told(error.response))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return _fail(f"{CATALOGUE[1].err_id}: no gateway answers at {server[0]}: {error}")
    except TimeoutError as error:
        return _fail(str(error))
    (show or _print)(result)
    return 0


def _told(response: httpx.Response) -> str:
    try:
        body = response.json()
        lines = [f"HTTP {response.status_code} {body['err_id']}: {body['message']}"]
        lines += [f"  {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in body.get("errors", [])]
        return "\n".join(lines)
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}: {response.text[:200]}"


def _fail(message: str) -> int:
    click.echo(message, err=True)
    return 1


def _print(document: Any) -> None:
    click.echo(json.dumps(document, ensure_ascii=False, indent=2))


def _print_table(runs: Sequence[dict[str, Any]]) -> None:
    """FLOW-447"""
    names = ("run_id", "status", "flow_name", "tag", "updated_at")
    rows = [names, *(tuple(str(run.get(name, "")) for name in names) for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _merged_params(file: Path | None, text: str | None, pairs: Sequence[str]) -> dict[str, Any]:
    """FLOW-446: the file, then the text, then each pair; later ones win, key by key."""
    merged: dict[str, Any] = {}
    if file is not None:
        try:
            merged |= _json_object(file.read_text(encoding="utf-8"), f"--params-file {file}")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {file}: {error}") from error
    if text is not None:
        merged |= _json_object(text, "--params")
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--param {pair!r} must be KEY=VALUE, for example name=you")
        merged[key] = _value(value)
    return merged


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f'{where} must be a JSON object, for example {{"name": "you"}}')
    return document


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    run(cli, "pyoco-client")


if __name__ == "__main__":
    main()
