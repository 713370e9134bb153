"""Writes the pages that the code knows best: `python docs/generate.py`. A test fails when one of them is stale."""
# ruff: noqa: INP001  (a script beside the pages it writes, not a package)

from __future__ import annotations

import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import click

import pyoco_server
from pyoco_server import config, errors
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.priced.reasons import HTTP_STATUS, RETRY_AFTER_SECONDS, RUN_FAILURES, Reason, title_of
from pyoco_server.core.states import FLOW_MOVES, PROGRAM_MOVES, TERMINAL, Moves, RunState, TaskState, WorkerState
from pyoco_server.core.states.priced import STEPS, At, Money, Status
from pyoco_server.core.waiting import WaitReason
from pyoco_server.doors.http.answers import STATUS
from pyoco_server.doors.http.app import OPERATIONS, openapi_schemas
from pyoco_server.doors.http.exposition import METRICS, PROCESS_METRICS
from pyoco_server.doors.http.operations import Meter, Operation, openapi_paths
from pyoco_server.loops.tally import Histogram

__all__ = ["commands", "pages"]

ROOT = Path(__file__).parents[1]
_MARK = "<!-- Generated: python docs/generate.py -->"
#: Help is wrapped at this width whatever the terminal says.
_HELP_COLUMNS = 100


def pages() -> dict[str, str]:
    """Every generated page: its path below the root, and its text."""
    return {
        "docs/STATES.md": states_page(),
        "docs/reference/cli.md": cli_page(),
        "docs/reference/errors.md": errors_page(),
        "docs/reference/metrics.md": metrics_page(),
        "docs/reference/python.md": python_page(),
        "docs/reference/routes.md": routes_page(),
        "docs/reference/settings.md": config.reference(),
    }


def main() -> None:
    for path, text in pages().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", _MARK, *parts]) + "\n"


def _remarks(kind: type[Enum]) -> dict[str, str]:
    """What the `#:` comment above each member of an enum says."""
    found: dict[str, str] = {}
    said: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        text = line.strip()
        if text.startswith("#:"):
            said.append(text.removeprefix("#:").strip())
        elif member := re.match(r"([A-Z_]+) = ", text):
            found[member[1]] = _without_rules(" ".join(said))
            said = []
    return found


def _without_rules(text: str) -> str:
    """Rule ids serve those who work on the code; a reader of these pages has no use for them."""
    rule = r"[A-Z]+-\d+(( to|,) [A-Z]+-\d+)*"
    return re.sub(rf" \((sections? [\d., and]+|{rule})\)|{rule}: ?", "", text)


# States


#: Who makes each move, and when. A move without a line here cannot be generated.
_MOVE_TEXTS = {
    "claim": "A worker takes the run for one more attempt. A RUNNING run is claimed only when its heartbeat is stale.",
    "put_back": "Its worker has to stop, or has no free slot: another worker may claim the run.",
    "retry": "A try failed, or a task took too long, and another one is allowed: it waits for its time.",
    "complete": "The work ended normally.",
    "fail": "The work ended with an error, or cannot be done at all. `reason` says why.",
    "ask_cancel": "A caller asked for the run to be stopped. The first request counts.",
    "cancel": "The work has stopped, was killed after the grace period, or never began.",
}


#: What the moves of a program mean where a flow has none of that name or a different one.
_PROGRAM_MOVE_TEXTS = {
    **_MOVE_TEXTS,
    "claim": "A worker takes the run for one more attempt. A RUNNING run is claimed only when its lease is stale.",
    "put_back": "The attempt failed, or its worker was lost, and another one is allowed.",
    "release": "The attempt was claimed and never started.",
    "reattach": "A worker whose connection was lost comes back with the same attempt.",
    "reattach_cancelled": "The same, after a cancel request.",
    "cancel": "It was waiting, or the program was stopped after a cancel request.",
}


#: The same for the steps of a priced run that change its state. Of a claim and its end, only the end is listed.
_STEP_TEXTS = {
    "T2": ("reserve", "gateway", "The most it may cost is set aside. In joint mode together with the row."),
    "T3": ("refuse", "gateway", "The budget does not cover it: the row is deleted, and the key is free again."),
    "T4": ("start", "worker", "A worker takes it, for the one time it is executed."),
    "T7": ("complete", "worker", "The result is stored; the charge is taken, the rest comes back."),
    "T8": ("fail", "worker", "The pack failed or took too long: the minimum fee."),
    "T10": ("time out", "keeper", "The worker did not renew its lease: the minimum fee."),
    "T14": (
        "refund",
        "gateway, worker, keeper",
        "It was not executed: no worker took it in time, it could not be queued, it was cancelled before it was due, "
        "or its worker lacks what the pack needs.",
    ),
    "T16": ("expire", "keeper", "Its retention is over: inputs and result are deleted, the money facts stay."),
    "T17": ("dispute", "any", "The money facts contradict each other; no more money is moved."),
    "T18": ("resolve", "operator", "`pyoco-server-admin budget resolve` says what it costs."),
}


def _priced_states() -> list[str]:
    seen: dict[str, None] = {}
    for name, step in STEPS.items():
        for source, target in step.arrivals():
            if (source.status, source.money) != (target.status, target.money):
                seen[f"    {_place(source)} --> {_place(target)}: {_STEP_TEXTS[name][0]}"] = None
    places = {at for step in STEPS.values() for arrival in step.arrivals() for at in arrival}
    names = sorted({f'    state "{at.status}, {at.money}" as {_place(at)}' for at in places})
    remarks, moneys = _remarks(Status), _remarks(Money)
    return [
        "## States of a priced run",
        "A [priced run](guides/priced-runs.md) has two: where the work is (`status`), and where the money is "
        "(`money_state`). They change together, in one write, or not at all. The table of steps is the one the code "
        "uses. It is executed once at most: no step leads back to QUEUED.",
        "\n".join(["```mermaid", "stateDiagram-v2", *names, "    [*] --> QUEUED_NONE", *seen, "```"]),
        _table(("Status", "Meaning"), ((f"`{status}`", remarks[status.name]) for status in Status)),
        _table(("Money", "Meaning"), ((f"`{money}`", moneys[money.name]) for money in Money)),
        _table(("Step", "By", "What happens"), ((f"`{name}`", by, told) for name, by, told in _STEP_TEXTS.values())),
        "A process that ends a run first claims the right to, with one conditional write. If two try, one wins, and "
        "the other has no effect. If the holder dies, a keeper completes what the claim says; only if the result that "
        "it names is missing, the run fails with the minimum fee. "
        "In lists (`GET /runs`) a priced run is shown as PENDING, RUNNING, COMPLETED or FAILED, with its own status "
        "as `priced_status`; it leaves the lists when it expires.",
    ]


def _place(at: At) -> str:
    return f"{at.status}_{at.money}"


def _arrows(moves: Moves) -> list[str]:
    return [
        f"    {source} --> {target}: {move.replace('_', ' ')}"
        for move, (sources, target) in moves.items()
        for source in RunState
        if source in sources
    ]


def _moves_table(moves: Moves, meanings: dict[str, str]) -> str:
    rows = (
        (f"`{move}`", ", ".join(source for source in RunState if source in sources), target.value, meanings[move])
        for move, (sources, target) in moves.items()
    )
    return _table(("Move", "From", "To", "When"), rows)


def states_page() -> str:
    ends = [f"    {state} --> [*]" for state in RunState if state in TERMINAL]
    remarks, waits = _remarks(RunState), _remarks(WaitReason)
    return _page(
        "States",
        "A flow or a program is in one of six states. Three of them are ends: nothing leads out of them. The tables of "
        "moves are those the code uses; a move that is not in them cannot happen. The diagram shows a flow.",
        "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> PENDING", *_arrows(FLOW_MOVES), *ends, "```"]),
        "## States of a run",
        _table(
            ("State", "End", "Meaning"),
            ((f"`{state}`", "yes" if state in TERMINAL else "", remarks[state]) for state in RunState),
        ),
        "## Moves of a flow",
        _moves_table(FLOW_MOVES, _MOVE_TEXTS),
        "## Moves of a program",
        _moves_table(PROGRAM_MOVES, _PROGRAM_MOVE_TEXTS),
        "A program keeps its own end when it ended before a cancel request reached it.",
        "In a flow a cancel request outranks the outcome: a run that is CANCELLING ends CANCELLED, even when its last "
        "task has just succeeded. Every move is a compare-and-set on the revision of the record, so of two writers "
        "one loses and reads the record again.",
        "## Why a run waits",
        "While no worker executes a run, `waiting` in `GET /runs/{run_id}` says why, with an estimate of its position "
        "in the queue of its tag, and how many workers and slots serve that tag. This covers PENDING runs, runs that "
        "an earlier version has put back, and disputed priced runs.",
        _table(("Reason", "Meaning"), ((f"`{reason}`", waits[reason.name]) for reason in WaitReason)),
        *_priced_states(),
        "## States of a task",
        "A task is a step of a flow: " + ", ".join(f"`{state}`" for state in TaskState) + ". When a run ends, "
        "its open tasks change: a running task becomes SUCCEEDED, FAILED or CANCELLED like its run; a pending task "
        "becomes CANCELLED in a cancelled run and stays PENDING otherwise.",
        "## States of a worker",
        "A worker reports that it is "
        + ", ".join(f"`{state}`" for state in WorkerState if state != "DISCONNECTED")
        + ". Readers derive `DISCONNECTED` for a worker that has not stopped and has sent no heartbeat for "
        "`PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC`.",
    )


# Routes


def routes_page() -> str:
    documents = openapi_paths(OPERATIONS)
    overview = _table(
        ("Request", "What it does", "Key"),
        ((f"[`{_title(op)}`](#{_slug(_title(op))})", op.summary, "no" if op.open else "yes") for op in OPERATIONS),
    )
    used = _schemas_of(documents)
    return _page(
        "Routes",
        "Every request of the HTTP API. The gateway serves the same as an OpenAPI document at `/openapi.json`, and as "
        "a page to try things out at `/docs`. The column Key says whether an API key is needed once "
        "`PYOCO_HTTP_AUTH_MODE` is `api_key`; a path that is not in this table needs one too.",
        overview,
        *(_operation(op, documents[op.path][op.method.lower()]) for op in OPERATIONS),
        "## Shapes",
        "Instants are unix seconds. Readers pass over fields they do not know: more may follow at any time.",
        *(_shape(name) for name in openapi_schemas() if name in used),
    )


def _title(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def _slug(title: str) -> str:
    """As the usual renderers make an anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _operation(operation: Operation, document: dict[str, Any]) -> str:
    parts = [f"## {_title(operation)}", f"{operation.summary}. {operation.description}".replace("?.", "?").strip()]
    if operation.all_parameters:
        rows = ((f"`{p['name']}`", p["in"], _type(p["schema"]), p["description"]) for p in operation.all_parameters)
        parts.append(_table(("Parameter", "In", "Type", "Meaning"), rows))
    body = document.get("requestBody")
    if body is not None:
        kind, content = next(iter(body["content"].items()))
        need = "" if body["required"] else ", may be left out"
        parts.append(f"Body: {_type(content['schema'])} as `{kind}`{need}.")
    answers = (
        (status, _answer_type(answer), answer["description"]) for status, answer in document["responses"].items()
    )
    parts.append(_table(("Status", "Answer", "When"), answers))
    return "\n\n".join(parts)


def _answer_type(answer: dict[str, Any]) -> str:
    return _type(next(iter(answer["content"].values()))["schema"]) if answer["content"] else ""


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if schema["type"] == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    limits = [f"{words} {schema[name]}" for name, words in _LIMITS.items() if name in schema]
    name = str(schema.get("format", schema["type"]))
    return f"{name} ({', '.join(limits)})" if limits else name


_LIMITS = {"minimum": "from", "maximum": "to", "default": "default", "maxLength": "length at most"}


def _schemas_of(value: Any) -> set[str]:
    """The names of all shapes that a document refers to, and those they refer to."""
    names = set(re.findall(r"#/components/schemas/(\w+)", repr(value)))
    return names.union(*(_schemas_of(openapi_schemas()[name]) for name in names))


def _shape(name: str) -> str:
    schema = openapi_schemas()[name]
    required = schema["required"]
    rows = (
        (f"`{field}`", _type(each), "always" if field in required else "")
        for field, each in schema["properties"].items()
    )
    return "\n\n".join([f"### {name}", schema["description"], _table(("Field", "Type", "Present"), rows)])


# Errors


def errors_page() -> str:
    rows = (
        (f"`{text.err_id}`", text.en, text.ja, text.action, ", ".join(_statuses(number)))
        for number, text in errors.CATALOGUE.items()
    )
    reasons = _remarks(DeadReason)
    return _page(
        "Errors",
        "Every error a user meets has an id, and keeps it. A message has the same number: `MSG-PYOCO-0005` belongs to "
        "`ERR-PYOCO-0005`. An HTTP error body holds `detail`, `err_id`, `msg_id`, `message` and `message_ja`; when the "
        "input is wrong, `errors` lists what is wrong and where (`loc`, `msg`, `type`). Without a status in "
        "the last column an error shows in logs, in a run's `error`, or on a command's stderr.",
        _table(("Id", "Message", "Message in Japanese", "What to do", "HTTP"), rows),
        "A command that fails writes the id and the message to stderr and ends with exit code 1; after Ctrl-C it ends "
        "with 130.",
        "## Reasons",
        "A run that FAILED says why in `reason`; its dead letter has the same word.",
        _table(("Reason", "Meaning"), ((f"`{reason.value}`", reasons[reason.name]) for reason in DeadReason)),
        "## Reasons of priced runs",
        "The routes below `/v1` answer a refusal with a problem document (`application/problem+json`): `type`, "
        "`title`, `status`, `detail`, `instance`, `reason_code` and `trace_id`, for some with `run_id` or `errors`. "
        "Programs go by `reason_code`. What to do about each: [priced runs](../guides/priced-runs.md#when-it-says-no).",
        _table(
            ("Reason code", "Title", "HTTP", "Retry-After in seconds"),
            (
                (f"`{reason}`", title_of(reason), str(status), str(RETRY_AFTER_SECONDS.get(reason, "")))
                for reason, status in HTTP_STATUS.items()
            ),
        ),
        "A priced run that FAILED says one of these in `result.reason_code`:",
        _table(
            ("Reason code", "Title"),
            ((f"`{reason}`", title_of(reason)) for reason in Reason if reason in RUN_FAILURES),
        ),
    )


def _statuses(number: int) -> list[str]:
    """The HTTP statuses of the errors with this number."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.PyocoError)]
    met = {next(STATUS[base] for base in kind.__mro__ if base in STATUS) for kind in kinds if kind.number == number}
    return [str(status) for status in sorted(met) if status != 500 or number == errors.PyocoError.number]


# Metrics


def metrics_page() -> str:
    rows = (
        (f"`{each.name}`", each.kind, ", ".join(f"`{name}`" for name in each.labels), each.help) for each in METRICS
    )
    return _page(
        "Metrics",
        "What `GET /metrics` tells, in the text format of Prometheus (version 0.0.4). The figures cover all tenants. "
        "With authentication on, the scrape needs an API key like every other request; any valid one will do. While "
        "NATS is away, or lists are not whole yet, the answer is 503 `ERR-PYOCO-0003`.",
        _table(("Metric", "Type", "Labels", "Meaning"), rows),
        "On Linux the process tells of itself, too: " + ", ".join(f"`{name}`" for name in PROCESS_METRICS) + ".",
        "## Bounds",
        "A scrape asks NATS three questions and never looks at single runs; it costs a few microseconds per line. A "
        "gateway tells 200 flows apart and counts further ones as `(other)`. `outcome` is the state a run ended in; a "
        "run that never began has neither a wait nor a duration.",
        _table(
            ("Histogram", "Upper bounds in seconds"),
            (("of runs", _bounds(Histogram.BOUNDS)), ("of requests", _bounds(Meter.BOUNDS))),
        ),
        "## Several gateways",
        "Gauges tell what is stored: every gateway gives the same answer, within a moment. The histograms of runs and "
        "`pyoco_run_redeliveries_total` tell what one gateway saw since it started, and each sees every run: look at "
        "one of them, or at the largest, and do not add them up. Runs that ended while a gateway was down are missing "
        "there. `pyoco_http_request_duration_seconds` and what the process tells belong to that gateway alone.",
    )


def _bounds(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


# Commands


def commands() -> dict[str, click.Command]:
    """The commands of the package by name, as `pyproject.toml` declares them."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    return {name: importlib.import_module(target.partition(":")[0]).cli for name, target in declared.items()}


def cli_page() -> str:
    shown: set[int] = set()
    parts = [
        f"{'#' * (2 + min(depth, 1))} {name}\n\n```text\n{text}\n```"
        for top, command in commands().items()
        for depth, name, text in _helps(top, command, None, shown)
    ]
    return _page(
        "Commands",
        "What each command says with `--help`. Settings that have no option are read from the environment, see "
        "[settings](settings.md).",
        *parts,
    )


def _helps(
    name: str, command: click.Command, parent: click.Context | None, shown: set[int], depth: int = 0
) -> Iterator[tuple[int, str, str]]:
    """A command that has two names, such as `get` and `run get`, is shown under the first. `shown`: ids of commands."""
    if id(command) in shown:
        return
    shown.add(id(command))
    context = click.Context(
        command, parent, info_name=name, terminal_width=_HELP_COLUMNS, max_content_width=_HELP_COLUMNS
    )
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield depth, context.command_path, text
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None and not found.hidden:
                yield from _helps(inner, found, context, shown, depth + 1)


# Python


def python_page() -> str:
    return _page(
        "Python",
        "What programs import from `pyoco_server`. A name that is not on this page is not public and may change "
        "without notice. `examples/run_worker.py` and `examples/submit_and_wait.py` are programs that use it. "
        "What authors of packs import from `pyoco_server.packs` is told in [Write a pack](../packs/writing-a-pack.md).",
        *(_name(name) for name in pyoco_server.__all__),
    )


def _name(name: str) -> str:
    value = getattr(pyoco_server, name)
    parts = [f"## {name}", _prose(value)]
    if name == "NatsBackendConfig":  # its fields are the settings, and have a page of their own
        parts.append("Its fields are the [settings](settings.md). Make it with `NatsBackendConfig.from_env()`.")
    elif inspect.isclass(value):
        parts += _methods(value)
    else:
        parts.insert(1, f"```python\n{_signature(name, value)}\n```")
    return "\n\n".join(parts)


def _prose(value: Any) -> str:
    """A docstring without its examples: those are for the terminal."""
    text = inspect.cleandoc(value.__doc__ or "").partition(">>>")[0]
    return _without_rules(text).strip()


def _methods(kind: type) -> list[str]:
    """Those that say something of themselves; the others only follow somebody else's protocol or are plain."""
    names = dict.fromkeys(
        name for part in kind.__mro__ if part.__module__.startswith("pyoco_server") for name in vars(part)
    )
    own = [(name, getattr(kind, name)) for name in names if not name.startswith("_")]
    rows = [(f"`{_call(name, member)}`", " ".join(_prose(member).split())) for name, member in own if callable(member)]
    return [_table(("Method", "What it does"), rows)] if any(told for _, told in rows) else []


def _call(name: str, function: Any) -> str:
    """`get_run(run_id, include=None)`: the types are in the editor."""
    words = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in {"self", "cls"}:
            default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
            words.append(f"{parameter.name}{default}")
    prefix = "await " if inspect.iscoroutinefunction(function) else ""
    return f"{prefix}{name}({', '.join(words)})"


def _signature(name: str, function: Any) -> str:
    prefix = "async def" if inspect.iscoroutinefunction(function) else "def"
    return f"{prefix} {name}{inspect.signature(function)}: ...".replace("'", "")


if __name__ == "__main__":
    main()
