"""The `submit-yaml`, `submit` and `rerun` commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyoco_server.client.calls import policy_of_text
from pyoco_server.client.connection import Asked
from pyoco_server.core.retries.reading import RUN_TIMEOUT_MAX
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.client.start import start_options
from pyoco_server.doors.cli.client.times import DurationType
from pyoco_server.doors.cli.client.waiting import submitting, wait_options
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

__all__ = [
    "KEY_LENGTH_MAX",
    "key_option",
    "options_of_the_run",
    "rerun",
    "retry_option",
    "run_options",
    "submit",
    "submit_yaml",
]

if TYPE_CHECKING:
    _Text = click.ParamType[Any]
else:  # not generic in the oldest click that is supported
    _Text = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])

KEY_LENGTH_MAX = 255
_KEY = re.compile(rf"[\x21-\x7e]{{1,{KEY_LENGTH_MAX}}}")


def _checked_key(ctx: click.Context, param: click.Parameter, key: str | None) -> str | None:
    if key is not None and not _KEY.fullmatch(key):
        raise click.BadParameter(f"1 to {KEY_LENGTH_MAX} visible ASCII characters and no spaces")
    return key


key_option = click.option(
    "--idempotency-key",
    metavar="KEY",
    callback=_checked_key,
    help="Submissions under the same key are accepted once.",
)


class RetryType(_Text):
    """A retry policy: the short text, or a JSON object. The command receives the object, an empty one for
    `none`."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value == "none":
            return {}
        try:
            return json.loads(value) if value.lstrip().startswith("{") else policy_of_text(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


retry_option = click.option(
    "--retry",
    type=RetryType(),
    metavar="POLICY",
    help="Retry policy: '3 times, exponential, 2s, up to 1m', a JSON object, or none, whatever the flow says.",
)
_run_timeout = click.option(
    "--run-timeout",
    type=DurationType(seconds_min=1, seconds_max=RUN_TIMEOUT_MAX),
    metavar="DURATION",
    help="How long each try may take: 90s, 2h, or seconds.",
)


def run_options(function: F) -> F:
    """The options of a run that concern its tries."""
    return retry_option(_run_timeout(function))


def options_of_the_run(more: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `run_options` out of those of a command."""
    retry, timeout = more.pop("retry"), more.pop("run_timeout")
    given: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    return given if retry is None else given | {"retry": retry or None}


_tags = click.option("--tags", metavar="A,B", help="Labels of the run, for searches.")


@click.command(
    "submit-yaml",
    cls=Command,
    example="""\
pyoco-client submit-yaml --workflow-file flow.yaml --flow-name main
pyoco-client submit-yaml --workflow-file flow.yaml --flow-name main --wait --fail""",
)
@click.option("--workflow-file", required=True, metavar="FILE", help="The flow.yaml to run; - for stdin.")
@click.option("--flow-name", required=True, metavar="NAME", help="Flow name of the run.")
@click.option("--tag", default="default", show_default=True, help="Routing tag: which workers may take the run.")
@start_options
@run_options
@key_option
@wait_options
@arguments.output_option("text")
@click.pass_obj
def submit_yaml(
    asked: Asked,
    /,
    workflow_file: str,
    flow_name: str,
    tag: str,
    start: dict[str, Any],
    idempotency_key: str | None,
    **more: Any,
) -> int:
    """Upload a flow.yaml and run it."""
    options = start | options_of_the_run(more)
    text = arguments.file_text(workflow_file)
    return submitting(
        asked,
        lambda client: client.submit_run_yaml(text, tag, flow_name, idempotency_key=idempotency_key, **options),
        **more,
    )


@click.command(
    "submit",
    cls=Command,
    example="""\
pyoco-client submit hello name=you --wait
pyoco-client submit --flow-name hello --params-file params.json n=3
pyoco-client submit hello name=you --in 10m""",
)
@click.argument("words", nargs=-1, metavar="FLOW [KEY=VALUE...]")
@click.option("--flow-name", metavar="NAME", help="Name of the flow, instead of FLOW.")
@click.option("--tag", help="Routing tag: which workers may take the run. [default: the server's default tag]")
@_tags
@arguments.params_options
@start_options
@run_options
@key_option
@wait_options
@arguments.output_option("text")
@click.pass_obj
def submit(  # noqa: PLR0913, PLR0917 - the fields of a submission
    asked: Asked,
    /,
    words: tuple[str, ...],
    flow_name: str | None,
    tag: str | None,
    tags: str | None,
    params: dict[str, Any],
    start: dict[str, Any],
    idempotency_key: str | None,
    **more: Any,
) -> int:
    """Run a flow that workers resolve by name.

    Each KEY=VALUE is a param; its value is JSON, or else text.
    """
    name, pairs = _name_and_pairs(flow_name, words)
    params = params | arguments.params_words(pairs)
    labels, options = arguments.labels(tags), start | options_of_the_run(more)
    return submitting(
        asked,
        lambda client: client.submit_run(name, params, tag, labels, idempotency_key=idempotency_key, **options),
        **more,
    )


def _name_and_pairs(flow_name: str | None, words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Split the words into the name of the flow and its params (CLI-6)."""
    name, pairs = flow_name, words
    if words and "=" not in words[0]:
        if flow_name is not None:
            raise UsageError(f"--flow-name {flow_name} and {words[0]}: give one of them")
        name, pairs = words[0], words[1:]
    if name is None:
        raise UsageError("the name of the flow is missing: FLOW or --flow-name")
    return name, pairs


@click.command(
    "rerun", cls=Command, example="pyoco-client rerun RUN_ID\npyoco-client rerun RUN_ID --param name=Ada --wait"
)
@arguments.run_id
@click.option("--tag", help="Another routing tag than that of the first run.")
@_tags
@arguments.params_options
@start_options
@run_options
@key_option
@wait_options
@arguments.output_option("text")
@click.pass_obj
def rerun(
    asked: Asked,
    /,
    run_id: str,
    tag: str | None,
    tags: str | None,
    params: dict[str, Any],
    start: dict[str, Any],
    idempotency_key: str | None,
    **more: Any,
) -> int:
    """Submit a run again, optionally with other params.

    The old run is not changed. Params are merged over the old ones, key by key.
    """
    options = start | options_of_the_run(more)
    change: dict[str, Any] = {"params": params or None, "tag": tag, "tags": arguments.labels(tags), **options}
    return submitting(
        asked,
        lambda client: client.rerun_run(full_run_id(client, run_id), idempotency_key=idempotency_key, **change),
        **more,
    )
