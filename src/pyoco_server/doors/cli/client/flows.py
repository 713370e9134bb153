"""The `flow` commands: list the flows that workers announce, show one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import print_fields, print_json, print_page, print_table
from pyoco_server.doors.cli.shell import Command

__all__ = ["list_flows", "show"]

_COLUMNS = ("name", "app", "params", "tag", "workers", "conflict", "doc")
_PARAM_COLUMNS = ("param", "type", "default", "choices")

_name = arguments.named("--name", "NAME", "The name of the flow.")


@click.command("flows", cls=Command, example="pyoco-client flow list\npyoco-client flows --tag gpu --search report")
@click.option("--tag", help="Flows of workers that serve this tag.")
@click.option("--search", metavar="TEXT", help="Words that name, app or doc contain.")
@click.option("--limit", type=int, help="1 to 200. [default: 50]")
@click.option("--cursor", metavar="TOKEN", help="`next_cursor` of the previous page, with the same filters.")
@arguments.output_option("table")
@click.pass_obj
def list_flows(asked: Asked, /, output: str, **filters: Any) -> None:
    """Show the flows that live workers announce, by name."""
    with calling(asked) as client:
        page = client.list_flows(**filters)
    print_page(page, output, _COLUMNS, _row)


@click.command("flow-show", cls=Command, example="pyoco-client flow show measure")
@_name
@arguments.output_option("text")
@click.pass_obj
def show(asked: Asked, name: str, output: str) -> None:
    """Show a flow: its params with types and defaults, and who offers it."""
    with calling(asked) as client:
        flow = client.get_flow(name)
    if output == "json":
        print_json(flow)
        return
    print_fields({member: value for member, value in flow.items() if member != "params"})
    params = list(_params(flow["params"]))
    if params:
        click.echo()
        print_table(params, _PARAM_COLUMNS)


def _row(flow: Mapping[str, Any]) -> dict[str, Any]:
    params = [f"{each['param']}{'' if each['default'] == _REQUIRED else '?'}" for each in _params(flow["params"])]
    workers = len(flow["workers"])
    return {**flow, "params": params, "workers": workers, "doc": flow["doc"].partition("\n")[0]}


_REQUIRED = "(required)"


def _params(schema: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield one row for each param. A param without a default that is not required may be left out."""
    required = schema.get("required", ())
    for name, param in schema.get("properties", {}).items():
        default = _REQUIRED if name in required else _json(param["default"]) if "default" in param else ""
        choices = ", ".join(_json(each) for each in param.get("enum", ()))
        yield {"param": name, "type": _type(param), "default": default, "choices": choices}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _type(schema: Mapping[str, Any]) -> str:
    """Return the JSON type in one word or a few. Any value: the empty text."""
    if "anyOf" in schema:
        return " or ".join(filter(None, map(_type, schema["anyOf"])))
    kind = schema.get("type", "")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return f"{text} ({schema['format']})" if "format" in schema else text
