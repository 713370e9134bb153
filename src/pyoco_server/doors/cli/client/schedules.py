"""The `schedule` commands (SCHED-32)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.core.schedules.record import CatchUp, Kind, Outcome, Overlap
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.many import agree
from pyoco_server.doors.cli.client.output import (
    instant,
    note,
    print_answer,
    print_fields,
    print_json,
    print_page,
    print_table,
    span,
)
from pyoco_server.doors.cli.client.schedule_files import SchedulePlan, plan_of, read_schedules, write_plan
from pyoco_server.doors.cli.client.submit import options_of_the_run, run_options
from pyoco_server.doors.cli.client.times import INSTANT, PAST
from pyoco_server.doors.cli.shell import Group
from pyoco_server.errors import UsageError

__all__ = ["schedule"]

_COLUMNS = ("name", "when", "timezone", "what", "next", "last", "paused")
_TICK_COLUMNS = ("tick_at", "source", "outcome", "run_status", "reason", "run_id")
_PAGE = 200
_NEXT_TICKS_SHOWN = 3
#: What `_named` says of what is submitted.
_NAMES = ("kind", "flow_name", "exec_name", "pack_type")

_name = arguments.named("--name", "NAME", "The name of the schedule.")


@click.group(
    "schedule",
    cls=Group,
    example="""\
pyoco-client schedule create nightly --cron "0 6 * * *" --timezone Asia/Tokyo --flow report
pyoco-client schedule list""",
)
def schedule() -> None:
    """Run flows, programs and packs by the clock."""


@schedule.command(
    "create",
    example="""\
pyoco-client schedule create nightly --cron "0 6 * * *" --flow report day='{{ scheduled_time.date }}'
pyoco-client schedule create nightly --cron "0 6 * * *" --flow report --retry '3 times' --run-timeout 5m
pyoco-client schedule create sync --every 15m --exec sync-tool --overlap queue_one -- --full""",
)
@click.argument("name")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE|ARG]...")
@click.option("--cron", metavar="TEXT", help='5 fields, or 6 with seconds first: "0 6 * * *".')
@click.option("--every", metavar="DURATION", help="An interval: 15m, 1h30m.")
@click.option("--offset", metavar="DURATION", help="With --every: ticks are that much later.")
@click.option("--at", "instants", multiple=True, metavar="WHEN", help="An instant, may be repeated: 2026-12-01T09:00.")
@click.option("--timezone", metavar="ZONE", help="IANA name. [default: UTC]")
@click.option("--flow", metavar="NAME", help="Run this flow; the words are its params.")
@click.option("--exec", "program", metavar="NAME", help="Run this program; the words are its arguments.")
@click.option("--what", metavar="JSON", help="What to submit, as JSON with its `kind`, for packs and everything else.")
@click.option("--tag", help="The routing tag of the flow.")
@run_options
@click.option("--start-at", metavar="WHEN", help="No tick before this.")
@click.option("--end-at", metavar="WHEN", help="No tick from this on.")
@click.option("--jitter", metavar="DURATION", help="Runs begin up to this much later.")
@click.option(
    "--overlap",
    help=f"While a run has not ended: {', '.join(Overlap)}. [default: {Overlap.SKIP}]",
    **arguments.words(*Overlap),
)
@click.option(
    "--catch-up",
    help=f"Which missed ticks are run: {', '.join(CatchUp)}. [default: {CatchUp.LAST}]",
    **arguments.words(*CatchUp),
)
@click.option("--window", metavar="DURATION", help="Older missed ticks are not run. [default: 1d]")
@click.option("--label", "labels", multiple=True, help="May be repeated.")
@click.option("--paused", is_flag=True, help="Create it paused.")
@arguments.output_option("text")
@click.pass_obj
def create(asked: Asked, /, name: str, words: tuple[str, ...], output: str, **given: Any) -> None:
    """Create a schedule."""
    document = _document(name, words, given)
    with calling(asked) as client:
        _print_schedule(client.create_schedule(document), output)  # type: ignore[arg-type]  # the gateway checks it


def _document(name: str, words: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    when = {each: given[each] for each in ("cron", "every", "offset") if given[each] is not None}
    if given["instants"]:
        when["at"] = list(given["instants"])
    catch_up = {"policy": given["catch_up"], "window": given["window"]}
    document: dict[str, Any] = {
        "name": name,
        "what": _what(words, given),
        "when": when,
        "catch_up": {each: value for each, value in catch_up.items() if value is not None},
        "labels": list(given["labels"]),
        "paused": given["paused"],
    }
    for member in ("timezone", "start_at", "end_at", "jitter", "overlap"):
        if given[member] is not None:
            document[member] = given[member]
    return document


def _what(words: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    flow, program, what = given["flow"], given["program"], given["what"]
    of_the_run = options_of_the_run(given)
    if [flow, program, what].count(None) != 2:
        raise UsageError("give one of --flow, --exec and --what")
    if what is not None:
        if words:
            raise UsageError("--what takes no words: params and args belong into it")
        return arguments.json_object(what, "--what") | of_the_run
    if program is not None:
        return {"kind": Kind.EXEC.value, "exec_name": program, "args": list(words)} | of_the_run
    made: dict[str, Any] = {
        "kind": Kind.FLOW.value,
        "flow_name": flow,
        "params": arguments.params_words(words),
    } | of_the_run
    return made if given["tag"] is None else made | {"tag": given["tag"]}


@schedule.command(
    "apply",
    example="""\
pyoco-client schedule apply -f schedules.yaml
pyoco-client schedule apply -f schedules.yaml --prune --yes
pyoco-client schedule apply -f schedules.yaml --dry-run""",
)
@click.option("-f", "--file", "path", required=True, metavar="FILE", help="A YAML or JSON file; - for stdin.")
@click.option("--prune", is_flag=True, help="Delete schedules that are not in the file.")
@click.option("--dry-run", is_flag=True, help="Only show the difference; exits with 1 if there is one.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@arguments.output_option("text")
@click.pass_obj
def apply(asked: Asked, path: str, prune: bool, dry_run: bool, yes: bool, output: str) -> int:
    """Make the schedules what a file says: create and replace by name.

    The file holds {"schedules": [...]}, each as `GET /schedules/NAME` shows it. The difference is shown first. A
    schedule of the file without `paused` stays as paused as it is.
    """
    wanted = read_schedules(arguments.file_text(path), path)
    with calling(asked) as client:
        existing: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = client.list_schedules(limit=_PAGE, cursor=cursor)
            existing += [dict(each) for each in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        plan = plan_of(wanted, existing, prune=prune)
        if dry_run or not plan.is_change:
            _print_plan(plan, output)
            return 1 if plan.is_change else 0
        write_plan(plan, note)
        agree("Apply them?", lambda: None, yes=yes)
        for document in plan.created:
            client.put_schedule(document["name"], document, only_new=True)  # type: ignore[arg-type]
        for change in plan.replaced:
            client.put_schedule(change.name, change.document, if_match="*")  # type: ignore[arg-type]
        for name in plan.deleted:
            client.delete_schedule(name)
    print_answer(plan.summary, output)
    return 0


def _print_plan(plan: SchedulePlan, output: str) -> None:
    if output == "json":
        print_json(plan.summary)
    else:
        write_plan(plan, click.echo)


@schedule.command("list", example="pyoco-client schedule list --label etl")
@click.option("--label", help="Only schedules with this label.")
@click.option("--paused/--active", default=None, help="Only schedules that are paused, or that are not.")
@click.option("--kind", help="Only schedules of this kind of run.", **arguments.words(*arguments.KINDS))
@click.option("--flow", help="Only schedules of this flow.")
@click.option("--limit", type=int, help="1 to 200. [default: 50]")
@click.option("--cursor", metavar="TOKEN", help="`next_cursor` of the previous page, with the same filters.")
@arguments.output_option("table")
@click.pass_obj
def list_schedules(asked: Asked, /, output: str, **filters: Any) -> None:
    """Show the schedules, by name."""
    with calling(asked) as client:
        page = client.list_schedules(**filters)
    print_page(page, output, _COLUMNS, _row)


def _row(shown: Mapping[str, Any]) -> dict[str, Any]:
    last = shown.get("last_tick")
    return {
        "name": shown["name"],
        "when": _when(shown["when"]),
        "timezone": shown["timezone"],
        "what": _named(shown["what"]),
        "next": instant(shown["next_ticks"][0]) if shown["next_ticks"] else "",
        "last": "" if last is None else f"{instant(last['tick'])} {last['outcome']}",
        "paused": "overdue" if shown["overdue"] else shown["paused"],
    }


def _when(when: Mapping[str, Any]) -> str:
    if "at" in when:
        return instant(when["at"][0]) if len(when["at"]) == 1 else f"{len(when['at'])} times"
    return when.get("cron") or f"every {when.get('every')} s"


def _named(what: Mapping[str, Any]) -> str:
    return f"{what.get('kind')} {what.get('flow_name') or what.get('exec_name') or what.get('pack_type')}"


def _catch_up(catch_up: Mapping[str, Any]) -> str:
    if catch_up["policy"] == CatchUp.NONE:
        return CatchUp.NONE.value
    return f"{catch_up['policy']}, at most {span(catch_up['window'])} late"


def _print_schedule(shown: Mapping[str, Any], output: str) -> None:
    if output == "json":
        print_json(shown)
    else:
        print_fields(_fields(shown))


def _fields(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a person reads about a schedule; the defaults that say nothing are left out."""
    what, when, last = shown["what"], shown["when"], shown.get("last_tick")
    row = _row(shown)
    return {
        "name": row["name"],
        "when": [instant(at) for at in when["at"]] if "at" in when else row["when"],
        "offset": span(when["offset"]) if when.get("offset") else None,
        "timezone": row["timezone"],
        "what": row["what"],
        **{name: value for name, value in what.items() if name not in _NAMES},
        "paused": row["paused"],
        "pause_reason": shown["pause_reason"],
        "start_at": shown["start_at"],
        "end_at": shown["end_at"],
        "jitter": span(shown["jitter"]) if shown["jitter"] else None,
        "overlap": shown["overlap"],
        "catch_up": _catch_up(shown["catch_up"]),
        "labels": shown["labels"],
        "next": [instant(tick) for tick in shown["next_ticks"][:_NEXT_TICKS_SHOWN]],
        "last": row["last"],
        "last run": None if last is None else " ".join(filter(None, (last.get("run_id"), last.get("run_status")))),
        "waiting_ticks": shown["waiting_ticks"] or None,
        "created_at": shown["created_at"],
        "updated_at": shown["updated_at"],
    }


@schedule.command("show", example="pyoco-client schedule show nightly")
@_name
@arguments.output_option("text")
@click.pass_obj
def show(asked: Asked, name: str, output: str) -> None:
    """Show a schedule."""
    with calling(asked) as client:
        _print_schedule(client.get_schedule(name), output)


@schedule.command("pause", example='pyoco-client schedule pause nightly --reason "migration"')
@_name
@click.option("--reason", metavar="TEXT", help="Reason, stored with the schedule.")
@arguments.output_option("text")
@click.pass_obj
def pause(asked: Asked, name: str, reason: str | None, output: str) -> None:
    """Pause a schedule: no tick happens until it is resumed, and none is made up for."""
    with calling(asked) as client:
        _print_schedule(client.pause_schedule(name, reason=reason), output)


@schedule.command("resume", example="pyoco-client schedule resume nightly")
@_name
@arguments.output_option("text")
@click.pass_obj
def resume(asked: Asked, name: str, output: str) -> None:
    """Resume a schedule."""
    with calling(asked) as client:
        _print_schedule(client.resume_schedule(name), output)


@schedule.command("trigger", example="pyoco-client schedule trigger nightly --param day=2026-12-01")
@_name
@arguments.params_options
@click.option("--idempotency-key", metavar="KEY", help="The same key again leads to the same run.")
@arguments.output_option("text")
@click.pass_obj
def trigger(asked: Asked, name: str, params: dict[str, Any], idempotency_key: str | None, output: str) -> None:
    """Run a schedule now, beside its ticks, also while it is paused."""
    with calling(asked) as client:
        answer = client.trigger_schedule(name, params=params or None, idempotency_key=idempotency_key)
    if output == "json":
        print_json(answer)
    else:
        print_fields({"run_id": answer["run_id"], "status": answer["status"], "schedule": name})


@schedule.command("backfill", example="pyoco-client schedule backfill nightly --from 2026-11-01 --to 2026-12-01")
@_name
@click.option("--from", "begin", type=PAST, required=True, metavar="WHEN", help="From this tick on: 2d (ago), a date.")
@click.option("--to", "end", type=PAST, required=True, metavar="WHEN", help="Ticks before this; not after now.")
@click.option("--overlap", help="[default: queue_all]", **arguments.words(*Overlap))
@arguments.output_option("text")
@click.pass_obj
def backfill(asked: Asked, name: str, begin: float, end: float, overlap: str | None, output: str) -> None:
    """Run past ticks that have no run. Repeating it changes nothing."""
    with calling(asked) as client:
        print_answer(client.backfill_schedule(name, begin, end, overlap=overlap), output)


@schedule.command("preview", example="pyoco-client schedule preview nightly -n 5")
@_name
@click.option("-n", "count", type=click.IntRange(1, 1000), help="How many. [default: 10]")
@click.option("--from", "begin", type=INSTANT, metavar="WHEN", help="From this instant on. [default: now]")
@arguments.output_option("table")
@click.pass_obj
def preview(asked: Asked, name: str, count: int | None, begin: float | None, output: str) -> None:
    """Show the next ticks of a schedule, and where clocks change."""
    with calling(asked) as client:
        answer = client.preview_schedule(name, count=count, begin=begin)
    if output == "json":
        print_json(answer)
    else:
        print_table([{**each, "tick_at": each["tick"]} for each in answer["items"]], ("tick_at", "local", "dst"))


@schedule.command("history", example="pyoco-client schedule history nightly --outcome skipped")
@_name
@click.option("--outcome", help="Only ticks with this outcome.", **arguments.words(*Outcome))
@click.option("--from", "begin", type=PAST, metavar="WHEN", help="From this tick on.")
@click.option("--to", "end", type=PAST, metavar="WHEN", help="Ticks before this.")
@click.option("--limit", type=int, help="1 to 200. [default: 50]")
@click.option("--cursor", metavar="TOKEN", help="`next_cursor` of the previous page, with the same filters.")
@arguments.output_option("table")
@click.pass_obj
def history(asked: Asked, /, name: str, output: str, **query: Any) -> None:
    """Show what became of the ticks, newest first."""
    with calling(asked) as client:
        page = client.list_schedule_ticks(name, **query)
    print_page(page, output, _TICK_COLUMNS, lambda tick: {"tick_at": tick["tick"], **tick})


@schedule.command("delete", example="pyoco-client schedule delete nightly")
@_name
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@arguments.output_option("text")
@click.pass_obj
def delete(asked: Asked, name: str, yes: bool, output: str) -> None:
    """Delete a schedule, its history and its waiting ticks; its runs stay."""
    with calling(asked) as client:
        agree(f"Delete the schedule {name}?", lambda: None, yes=yes)
        print_answer(client.delete_schedule(name), output)
