"""The `price` commands: run packs that are paid for from a budget, and read their results."""

from __future__ import annotations

import json
import math
import re
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling, fail
from pyoco_server.doors.cli.client.output import is_terminal, note, print_json, print_table, safe
from pyoco_server.doors.cli.client.price_result import print_document
from pyoco_server.doors.cli.client.price_result import result as result_command
from pyoco_server.doors.cli.client.price_upload import upload as upload_command
from pyoco_server.doors.cli.client.progress import looking
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.client.start import start_options
from pyoco_server.doors.cli.client.times import DurationType
from pyoco_server.doors.cli.client.waiting import timeout_option
from pyoco_server.doors.cli.shell import Group, RenamedOption

if TYPE_CHECKING:
    from pyoco_server.http_client import PackReceipt, PackRun, PyocoHttpClient

__all__ = ["price"]

F = TypeVar("F", bound=Callable[..., Any])

KEY_LENGTH_MIN, KEY_LENGTH_MAX = 8, 64
_KEY = re.compile(rf"[\x21-\x7e]{{{KEY_LENGTH_MIN},{KEY_LENGTH_MAX}}}")
_USD = re.compile(r"(0|[1-9][0-9]{0,8})(?:\.([0-9]{1,4}))?", re.ASCII)
_PACK_COLUMNS = ("pack_type", "available", "missing")
_COLUMNS = ("run_id", "status", "money_state", "reserved_usd", "used_usd", "budget_remaining_usd", "reason")


def _checked_key(ctx: click.Context, param: click.Parameter, key: str | None) -> str | None:
    if key is not None and not _KEY.fullmatch(key):
        raise click.BadParameter(f"{KEY_LENGTH_MIN} to {KEY_LENGTH_MAX} visible ASCII characters and no spaces")
    return key


def _checked_score(ctx: click.Context, param: click.Parameter, score: float | None) -> float | None:
    if score is not None and not 0 <= score <= 1:  # also refuses NaN
        raise click.BadParameter(f"{score:g} is not from 0 to 1")
    return score


def _checked_usd(ctx: click.Context, param: click.Parameter, text: str) -> str:
    """Complete the amount to four decimals, as it is sent (CLI-9)."""
    match = _USD.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} must be dollars with at most four decimals, such as 5 or 0.25")
    return f"{match[1]}.{(match[2] or '').ljust(4, '0')}"


def _whole_seconds(ctx: click.Context, param: click.Parameter, seconds: float | None) -> int | None:
    if seconds is not None and not seconds.is_integer():
        raise click.BadParameter(f"{seconds:g} s is not a whole number of seconds")
    return None if seconds is None else int(seconds)


_result_option = click.option(
    "--result", is_flag=True, help="Print the stored result itself, after verifying its SHA-256."
)


def _wait_options(function: F) -> F:
    for option in (
        _result_option,
        timeout_option,
        click.option("--wait", is_flag=True, help="Wait for the run to finish; exits with 1 unless COMPLETED."),
    ):
        function = option(function)
    return function


@click.group(
    "price",
    cls=Group,
    example="""\
pyoco-client price packs
pyoco-client price submit decision --inputs-file inputs.json --max-cost-usd 0.25""",
)
def price() -> None:
    """Run packs that are paid for from a budget.

    To list such runs: pyoco-client list --kind pack
    """


price.add_command(result_command)
price.add_command(upload_command)


@price.command(
    "submit",
    example="""\
pyoco-client price submit decision --input question="When?" --input context="We ship on Friday." --max-cost-usd 0.25
pyoco-client price submit decision --inputs-file inputs.json --max-cost-usd 0.25 --wait
pyoco-client price submit decision --inputs-file inputs.json --max-cost-usd 0.25 --result
pyoco-client price submit ocr --inputs-file images.json --artifact markdown --artifact docx --max-cost-usd 0.25""",
)
@click.argument("pack")
@click.option(
    "--input", "pairs", multiple=True, metavar="KEY=VALUE", help="One input, as JSON or text; wins over the file."
)
@click.option("--inputs-file", metavar="FILE", help="A file that holds a JSON object; - for stdin.")
@click.option(
    "--max-cost-usd",
    required=True,
    metavar="USD",
    callback=_checked_usd,
    help="Maximum cost: 0.25, 5, at most four decimals. It is reserved; the unused part is released.",
)
@click.option(
    "--timebox",
    "timebox_sec",
    cls=RenamedOption,
    old_name="--timebox-sec",
    type=DurationType(seconds_min=1, seconds_max=90),
    callback=_whole_seconds,
    metavar="DURATION",
    help="Time limit of the pack: 1s to 90s. [default: 90s]",
)
@click.option(
    "--min-reliability",
    type=float,
    metavar="SCORE",
    callback=_checked_score,
    help="0 to 1, with at most four decimals. [default: 0.8]",
)
@click.option(
    "--artifact",
    "files",
    multiple=True,
    type=click.Choice(["markdown", "docx"]),
    help="An additional file to produce, if the pack supports it: ocr supports both. May be repeated.",
)
@click.option("--inline", is_flag=True, help="Include the data of a small result in the run itself.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    callback=_checked_key,
    help=f"{KEY_LENGTH_MIN} to {KEY_LENGTH_MAX} characters. The same submission under one key is paid for once.",
)
@start_options
@_wait_options
@arguments.output_option("table")
@click.pass_obj
def submit(  # noqa: PLR0913, PLR0917 - the fields of a submission
    asked: Asked,
    /,
    pack: str,
    pairs: Sequence[str],
    inputs_file: str | None,
    files: Sequence[str],
    start: dict[str, Any],
    min_reliability: float | None,
    idempotency_key: str | None,
    wait: bool,
    timeout_sec: float | None,
    result: bool,
    output: str,
    **given: Any,
) -> int:
    """Run a pack for at most the given price.

    Ctrl-C, or --timeout running out, ends the waiting, not the run.
    """
    inputs = arguments.merged_inputs(inputs_file, pairs)
    key = idempotency_key or uuid.uuid4().hex
    given |= {
        "min_reliability_score": min_reliability,
        "artifacts": {f"include_{each}": True for each in files} or None,
        **start,
    }
    stays = wait or result or timeout_sec is not None  # the other two imply it
    with calling(asked) as client:
        receipt = _submitted(client, pack, inputs, key, **given)
        if not stays:
            _print_receipt(receipt, output)
            return 0
        note(f"run {receipt['run_id']} is submitted; {receipt['reservation']['max_cost_usd']} USD are reserved for it")
        return _conclude(client, _end_of(client, receipt["run_id"], timeout_sec), output, has_result=result)


@price.command("packs", example="pyoco-client price packs\npyoco-client price packs --output json")
@arguments.output_option("table")
@click.pass_obj
def packs(asked: Asked, output: str) -> int:
    """List the packs, and what is missing where no worker can execute one."""
    with calling(asked) as client:
        found = client.list_packs()
    if output == "json":
        print_json(found)
    else:
        availability = {True: "yes", False: "no", None: "unknown"}
        rows = [
            {**each, "available": availability[each["available"]], "missing": "; ".join(each["missing"])}
            for each in found
        ]
        print_table(rows, _PACK_COLUMNS)
    return 0


@price.command("get", example="pyoco-client price get RUN_ID\npyoco-client price get RUN_ID --result")
@arguments.run_id
@_result_option
@arguments.output_option("table")
@click.pass_obj
def get(asked: Asked, run_id: str, result: bool, output: str) -> int:
    """Show a priced run: its state, and what it costs."""
    with calling(asked) as client:
        run_id = full_run_id(client, run_id)
        run = client.get_pack_run(run_id)
        if not result:
            _print_run(run, output)
            return 0
        if run["status"] != "COMPLETED":
            fail(f"run {run_id} is {run['status']}{_because(run)}: there is no result")
        return _print_result(client, run)


@price.command(
    "wait",
    example="pyoco-client price wait RUN_ID --timeout 2m\npyoco-client price wait RUN_ID --result",
)
@arguments.run_id
@timeout_option
@_result_option
@arguments.output_option("table")
@click.pass_obj
def wait(asked: Asked, run_id: str, timeout_sec: float | None, result: bool, output: str) -> int:
    """Wait for a priced run to finish and print its outcome.

    The exit code is 1 if the run failed, or if the time ran out first. Ctrl-C ends the waiting, not the run.
    """
    with calling(asked) as client:
        run_id = full_run_id(client, run_id)
        if timeout_sec is None:
            _check_run_exists(client, run_id)
        return _conclude(client, _end_of(client, run_id, timeout_sec), output, has_result=result)


def _submitted(
    client: PyocoHttpClient, pack: str, inputs: Mapping[str, Any], key: str, max_cost_usd: str, **given: Any
) -> PackReceipt:
    """Submit the run. If the response is lost, print the key, with which a retry is not charged twice."""
    import httpx  # noqa: PLC0415 - already imported by the client

    from pyoco_server.http_client import AnswerDamaged  # noqa: PLC0415

    try:
        return client.submit_pack(pack, inputs, max_cost_usd, idempotency_key=key, **given)
    except (httpx.ConnectError, httpx.ConnectTimeout, AnswerDamaged):  # never sent, or received by another server
        raise
    except httpx.TransportError:
        note(f"it is not known whether the run was accepted: submit it again with --idempotency-key {key}")
        raise


def _check_run_exists(client: PyocoHttpClient, run_id: str) -> None:
    """Fail immediately if the run does not exist or the server is unavailable: without a timeout the wait would never
    end."""
    from pyoco_server.http_client import PackProblem  # noqa: PLC0415 - already imported by the client

    try:
        client.get_pack_run(run_id)
    except PackProblem as error:
        if error.response.status_code != 429:  # the run exists, and the server is busy
            raise


def _end_of(client: PyocoHttpClient, run_id: str, timeout_sec: float | None) -> PackRun:
    """Wait for the run and return it; show its status meanwhile. Raises TimeoutError."""
    with looking(f"run {run_id}") as show:
        seconds = math.inf if timeout_sec is None else timeout_sec
        return client.wait_pack_run(run_id, seconds, progress=lambda run: show(str(run["status"])))


def _conclude(client: PyocoHttpClient, run: PackRun, output: str, *, has_result: bool) -> int:
    """Print the outcome of a run and return the exit code."""
    if run["status"] != "COMPLETED":
        _print_run(run, output)
        used = run["cost"]["used_usd"]
        note(f"run {run['run_id']} is {run['status']}{_because(run)}; {used} USD were charged")
        return 1
    if has_result:
        return _print_result(client, run)
    _print_run(run, output)
    return 0


def _print_result(client: PyocoHttpClient, run: PackRun) -> int:
    """Print the stored bytes for programs; on a terminal, with control characters escaped."""
    import httpx  # noqa: PLC0415 - already imported by the client

    try:
        data = client.read_pack_result(run)
    # it may be stored on another server than the gateway
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        fail(f"the result of run {run['run_id']} could not be read: {str(error) or type(error).__name__}")
    if not is_terminal(sys.stdout):
        click.echo(data, nl=False)
        return 0
    try:
        print_document(json.loads(data))
    except (ValueError, RecursionError):
        click.echo(safe(data.decode(errors="replace")))
    return 0


def _print_receipt(receipt: PackReceipt, output: str) -> None:
    if receipt["replayed"]:
        note("this key was used before: this is the receipt of the first submission, and nothing was charged again")
    if output == "json":
        print_json(receipt)
        return
    shown = {"reserved_usd": receipt["reservation"]["max_cost_usd"], **receipt, **receipt["costs"]}
    print_table([shown], ("run_id", "status", "reserved_usd", "budget_remaining_usd"))
    note(f"to wait for it: pyoco-client price wait {receipt['run_id']}")


def _print_run(run: PackRun, output: str) -> None:
    if output == "json":
        print_json(run)
    else:
        print_table([{**run, **run["cost"], "reason": (run["result"] or {}).get("reason_code")}], _COLUMNS)


def _because(run: PackRun) -> str:
    result: Mapping[str, Any] = run["result"] or {}
    detail = (result.get("problem") or {}).get("detail")
    parts = [str(each) for each in (result.get("reason_code"), detail) if each]
    return f" ({': '.join(parts)})" if parts else ""
