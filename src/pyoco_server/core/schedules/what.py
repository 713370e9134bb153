"""What a schedule submits (SCHED-2): checked when it is written, and made a submission at each tick."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from pyoco_server.core.delays import NO_DELAY, Delay
from pyoco_server.core.names import TAG_LENGTH_MAX, is_tag
from pyoco_server.core.packs.spec import Here, PackSpec
from pyoco_server.core.priced.strict_text import read_object
from pyoco_server.core.priced.submission import Ask, ask_of, problems_of
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.job import TIMEOUT_MAX, JobAsk, check_ask
from pyoco_server.core.retries.policy import to_document
from pyoco_server.core.retries.reading import RUN_TIMEOUT_MAX, RUN_TIMEOUT_MIN, read_policy
from pyoco_server.core.run import Submission
from pyoco_server.core.schedules.checks import Checks, Loc
from pyoco_server.core.schedules.ids import schedule_label
from pyoco_server.core.schedules.record import Kind
from pyoco_server.core.schedules.templates import TemplateContext, render, template_problems
from pyoco_server.errors import CATALOGUE, Refused, TriedOnce

__all__ = ["BYTES_MAX", "TEMPLATED", "TRIED_ONCE", "Offer", "Ticket", "check_what", "flow_ask", "job_ask", "pack_ask"]

#: It is written at each tick.
BYTES_MAX: Final = 131_072
_DEPTH_MAX: Final = 64
_TAGS_MAX: Final = 100
#: Listed in one answer.
_PROBLEMS_MAX: Final = 100
CLIENT_ID_DEFAULT: Final = "schedule"

#: The member that may have templates, by kind (SCHED-15).
TEMPLATED: Final[dict[str, str]] = {Kind.FLOW: "params", Kind.EXEC: "args", Kind.PACK: "inputs"}
_MEMBERS: Final[dict[str, tuple[str, ...]]] = {
    Kind.FLOW: ("flow_name", "params", "tag", "tags", "retry", "timeout"),
    Kind.EXEC: ("exec_name", "args", "client_id", "group", "timeout_sec", "retry", "timeout"),
    Kind.PACK: ("pack_type", "inputs", "reservation", "options", "artifacts", "meta"),
}
_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    Kind.FLOW: ("flow_name",),
    Kind.EXEC: ("exec_name",),
    Kind.PACK: ("pack_type", "inputs", "reservation"),
}
#: The type of a problem: a pack is not tried again (RETRY-19).
TRIED_ONCE: Final = "tried_once"
_NIL_JOB: Final = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What the deployment offers to the writer of a schedule."""

    group: str = "default"
    #: None: this deployment has no priced runs, or the caller no tenant.
    packs: Mapping[str, PackSpec] | None = None
    here: Here | None = None
    #: False: whether a pack is offered is for the gateway to say, as in a command that reads a file.
    checks_packs: bool = True


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """The tick that a submission is for."""

    context: TemplateContext
    #: The member `schedule` of its run (SCHED-14).
    mark: Mapping[str, Any]
    delay: Delay = NO_DELAY
    #: Laid over the templated member (SCHED-27).
    over: Mapping[str, Any] = field(default_factory=dict)


def check_what(checks: Checks, given: Any, loc: Loc, sample: TemplateContext, offer: Offer) -> dict[str, Any]:
    """Return the member as it is stored; its problems are in `checks`."""
    what = dict(checks.mapping(given, loc))
    if not what:
        if not checks.problems:
            checks.wrong(loc, "is required", "必須です", "missing")
        return {}
    before = len(checks.problems)
    kind = checks.choice(what.get("kind"), (*loc, "kind"), tuple(Kind), "")
    if not kind:
        return {}
    if kind == Kind.PACK:
        _refuse_tries(checks, what, loc)
    checks.unknown(loc, what, ("kind", *_MEMBERS[kind]))
    for name in _REQUIRED[kind]:
        if what.get(name) is None:
            checks.wrong((*loc, name), "is required", "必須です", "missing")
    _CHECKS[kind](checks, what, loc)
    if _depth(what) > _DEPTH_MAX:
        checks.wrong(loc, f"is nested more than {_DEPTH_MAX} deep", f"入れ子は{_DEPTH_MAX}段までです", "too_deep")
        return {}
    if len(_json(what)) > BYTES_MAX:
        checks.wrong(loc, f"takes more than {BYTES_MAX} bytes", f"{BYTES_MAX}バイト以内で指定してください", "too_long")
        return {}
    templated = TEMPLATED[kind]
    found = template_problems(what.get(templated) or (), (*loc, templated))
    checks.problems += islice(found, _PROBLEMS_MAX)
    if len(checks.problems) == before:
        _check_rendered(checks, kind, what, loc, Ticket(context=sample, mark={}), offer)
    return {name: value for name, value in what.items() if value is not None or name == "retry"}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _depth(value: Any, level: int = 0) -> int:
    if level > _DEPTH_MAX or not isinstance(value, dict | list):
        return level
    items = value.values() if isinstance(value, dict) else value
    return max((_depth(item, level + 1) for item in items), default=level)


def _read_tries(checks: Checks, what: dict[str, Any], loc: Loc, timeout_max: float) -> None:
    """Check `retry` and `timeout`, and write them as they are stored. A policy of null stays: no retry."""
    if what.get("retry") is not None:

        def report(place: Loc, msg: str, kind: str) -> None:
            if len(checks.problems) < _PROBLEMS_MAX:
                checks.wrong(place, msg, _POLICY_JA, kind)

        policy = read_policy(what["retry"], (*loc, "retry"), report)
        what["retry"] = None if policy is None else to_document(policy)
    if what.get("timeout") is not None:
        what["timeout"] = checks.duration(what["timeout"], (*loc, "timeout"), RUN_TIMEOUT_MIN, timeout_max)


def _refuse_tries(checks: Checks, what: dict[str, Any], loc: Loc) -> None:
    """RETRY-19"""
    text = CATALOGUE[TriedOnce.number]
    for name in ("retry", "timeout"):
        if name in what:
            del what[name]
            checks.wrong((*loc, name), text.en, text.ja, TRIED_ONCE)


def _check_flow(checks: Checks, what: dict[str, Any], loc: Loc) -> None:
    if what.get("flow_name") is not None:
        checks.text(what["flow_name"], (*loc, "flow_name"))
    if what.get("params") is not None:
        checks.mapping(what["params"], (*loc, "params"))
    if what.get("tag") is not None:
        rule = f"must be 1 to {TAG_LENGTH_MAX} letters, digits, '_' and '-', for example gpu-large"
        rule_ja = f"英数字・'_'・'-' の1～{TAG_LENGTH_MAX}文字で指定してください（例: gpu-large）"
        checks.matching(what["tag"], (*loc, "tag"), is_tag, rule, rule_ja)
    if what.get("tags") is not None:
        checks.texts(what["tags"], (*loc, "tags"), _TAGS_MAX)
    _read_tries(checks, what, loc, RUN_TIMEOUT_MAX)


def _check_exec(checks: Checks, what: dict[str, Any], loc: Loc) -> None:
    args = what.get("args")
    if args is not None and not (isinstance(args, list) and all(isinstance(each, str) for each in args)):
        checks.wrong((*loc, "args"), "must be an array of strings", "文字列の配列で指定してください", "type")
    if what.get("timeout") is not None and what.get("timeout_sec") is not None:
        message = "cannot be given together with timeout_sec"
        checks.wrong((*loc, "timeout"), message, "timeout_sec と同時には指定できません")
    _read_tries(checks, what, loc, TIMEOUT_MAX)


def _check_pack(checks: Checks, what: dict[str, Any], loc: Loc) -> None:
    if what.get("inputs") is not None:
        checks.mapping(what["inputs"], (*loc, "inputs"))


_Check = Callable[[Checks, dict[str, Any], Loc], None]
_CHECKS: Final[dict[str, _Check]] = {Kind.FLOW: _check_flow, Kind.EXEC: _check_exec, Kind.PACK: _check_pack}
#: The member at fault, by the name that frames have for it.
_GRID_NAMES: Final = {"ExecName": "exec_name", "Args": "args", "ClientId": "client_id", "TimeoutSec": "timeout_sec"}
_INVALID_JA: Final = "値が不正です"
_POLICY_JA: Final = "リトライの指定が不正です"


def _check_rendered(checks: Checks, kind: str, what: dict[str, Any], loc: Loc, sample: Ticket, offer: Offer) -> None:
    """Check what a tick would submit."""
    if kind == Kind.EXEC:
        try:
            check_ask(job_ask(what, sample, _NIL_JOB, offer.group, None))
        except GridRefused as error:
            place = _GRID_NAMES.get(error.field or "", error.field or "exec_name")
            checks.wrong((*loc, place), error.message, _INVALID_JA)
    elif kind == Kind.PACK and offer.checks_packs:
        if offer.packs is None or offer.here is None:
            message = "priced runs need a key of their tenant, and a deployment that offers them"
            checks.wrong((*loc, "kind"), message, "課金runには、tenantのAPI keyと課金runが有効な環境が必要です")
            return
        document = _pack_document(what, sample)
        for problem in problems_of(document, offer.packs, offer.here, 0.0, 0.0):
            checks.wrong((*loc, *problem.loc), problem.msg, _INVALID_JA, problem.type)
        try:
            if not checks.problems:
                ask_of(document, "sample-key")
        except Refused as error:
            for problem in error.problems:
                checks.wrong((*loc, *problem.loc), problem.msg, _INVALID_JA, problem.type)


def flow_ask(what: Mapping[str, Any], ticket: Ticket, default_tag: str) -> Submission:
    tag = what.get("tag") or default_tag
    params = render(what.get("params") or {}, ticket.context) | dict(ticket.over)
    return Submission(
        flow_name=what["flow_name"],
        tag=tag,
        tags=(*((tag,) if what.get("tags") is None else what["tags"]), schedule_label(ticket.context.schedule_name)),
        params=params,
        delay=ticket.delay,
        retry=_retry_of(what),
        timeout=what.get("timeout"),
        schedule=ticket.mark,
    )


def job_ask(what: Mapping[str, Any], ticket: Ticket, job_id: str, default_group: str, api_key_id: str | None) -> JobAsk:
    rendered = render(what.get("args") or [], ticket.context)
    return JobAsk(
        job_id=job_id,
        group=what.get("group") or default_group,
        client_id=what.get("client_id") or api_key_id or CLIENT_ID_DEFAULT,
        exec_name=what.get("exec_name") or "",
        args=tuple("" if each is None else str(each) for each in rendered),
        timeout_sec=what.get("timeout_sec") if what.get("timeout") is None else what["timeout"],
        delay=ticket.delay,
        retry=_retry_of(what),
        schedule=ticket.mark,
        tags=(schedule_label(ticket.context.schedule_name),),
    )


def _retry_of(what: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the policy as a submission has it: None: not given; empty: no retry."""
    return (what["retry"] or {}) if "retry" in what else None


def _pack_document(what: Mapping[str, Any], ticket: Ticket) -> dict[str, Any]:
    """Return it as the strict reader of submissions does, which keeps the digits of numbers."""
    inputs = render(what.get("inputs") or {}, ticket.context) | dict(ticket.over)
    document = {name: value for name, value in what.items() if name != "kind"} | {"inputs": inputs}
    return read_object(_json(document))


def pack_ask(what: Mapping[str, Any], ticket: Ticket, key: str, offer: Offer) -> Ask:
    """Raises Refused with every problem. Whether the pack is offered was checked when the schedule was written: a
    keeper may be without the package of a plug-in."""
    document = _pack_document(what, ticket)
    assert offer.packs is not None
    assert offer.here is not None
    found = problems_of(document, offer.packs, offer.here, 0.0, 0.0)
    problems = tuple(each for each in found if each.loc != ("pack_type",))
    if problems:
        raise Refused(problems[0].msg, problems=problems)
    return replace(ask_of(document, key), delay=ticket.delay, schedule=ticket.mark)
