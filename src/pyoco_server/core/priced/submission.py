"""A priced submission: checked completely before any money moves (contract 10.3, 11.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from pyoco_server.core.delays import NO_DELAY, Delay, delay_problem
from pyoco_server.core.durations import duration_of, instant_of
from pyoco_server.core.packs.spec import Check, Here, Member, Members, PackSpec, choice, is_pack_name, text
from pyoco_server.core.priced.canonical import NotCanonical
from pyoco_server.core.priced.constants import PROFILE_VERSION, TIMEBOX_SEC_DEFAULT, TIMEBOX_SEC_MAX
from pyoco_server.core.priced.money import minimum_fee, parse_usd
from pyoco_server.core.priced.payload_hash import delayed_hash, payload_hash
from pyoco_server.core.priced.run import NewRun
from pyoco_server.core.priced.strict_text import decimal_of, plain, wrong
from pyoco_server.core.run import Caller
from pyoco_server.core.unknown import unknown_members
from pyoco_server.errors import CATALOGUE, Problem

__all__ = ["CLIENT_VERSION_LENGTH_MAX", "RELIABILITY_E4_DEFAULT", "TRACE_ID", "Ask", "ask_of", "problems_of"]

RELIABILITY_E4_DEFAULT = 8_000
CLIENT_VERSION_LENGTH_MAX = 64
#: PRICED-64
TRACE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
#: A name that is safe to repeat: it shows which member was misspelt, and cannot contain hidden text.
_SHOWABLE = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Ask:
    """A valid submission, without its caller and run id."""

    pack_type: str
    inputs: dict[str, Any]
    artifacts: dict[str, Any]
    max_cost_usd: str
    timebox_sec: int
    min_reliability_e4: int
    inline: int
    #: None: the trace id of the request is used (PRICED-64).
    trace_id: str | None
    idempotency_key: str
    payload_hash: str
    delay: Delay = NO_DELAY
    #: The tick of a schedule that the run is for.
    schedule: Mapping[str, Any] | None = None

    def new_run(self, run_id: str, caller: Caller, trace_id: str, now: float) -> NewRun:
        assert caller.tenant_id is not None
        reserved = parse_usd(self.max_cost_usd)
        return NewRun(
            run_id=run_id,
            tenant_id=caller.tenant_id,
            pack_type=self.pack_type,
            profile_version=PROFILE_VERSION,
            idempotency_key=self.idempotency_key,
            payload_hash=self.payload_hash,
            reserved_usd_micros=reserved,
            minimum_fee_usd_micros=minimum_fee(reserved),
            timebox_sec=self.timebox_sec,
            min_reliability_e4=self.min_reliability_e4,
            inline=self.inline,
            artifacts=self.artifacts,
            inputs=self.inputs,
            trace_id=trace_id,
            api_key_id=caller.api_key_id,
            schedule=self.schedule,
            not_before=None if (due := self.delay.due_at(now)) is None else round(due * 1_000_000),
        )


def problems_of(
    document: dict[str, Any], offered: Mapping[str, PackSpec], here: Here, now: float, delay_seconds_max: float
) -> tuple[Problem, ...]:
    """Return every problem of a submission. `document` is what `read_object` returns."""
    return (
        *_BODY(document, ()),
        *_delay_problems(document, now, delay_seconds_max),
        *_pack_problems(document, offered, here),
    )


def ask_of(document: dict[str, Any], key: str) -> Ask:
    """Build the submission from a validated document, in which only numbers within `inputs` may still be invalid.

    Raises Refused.
    """
    reservation, meta = document["reservation"], document.get("meta", {})
    pack_type, max_cost_usd = document["pack_type"], reservation["max_cost_usd"]
    inputs, artifacts = plain(document["inputs"], ("inputs",)), document.get("artifacts", {})
    timebox_sec = int(reservation.get("timebox_sec", TIMEBOX_SEC_DEFAULT))
    score = decimal_of(reservation.get("min_reliability_score"))
    reliability_e4 = RELIABILITY_E4_DEFAULT if score is None else int(score.scaleb(4))
    delay = _delay_of(document)
    try:
        digest = payload_hash(
            pack_type=pack_type,
            inputs=inputs,
            timebox_sec=timebox_sec,
            max_cost_usd=max_cost_usd,
            artifacts=artifacts,
            min_reliability_e4=reliability_e4,
            profile_version=PROFILE_VERSION,
        )
    except NotCanonical as error:
        raise wrong(_steps(error.pointer), error.problem) from None
    return Ask(
        pack_type=pack_type,
        inputs=inputs,
        artifacts=artifacts,
        max_cost_usd=max_cost_usd,
        timebox_sec=timebox_sec,
        min_reliability_e4=reliability_e4,
        inline=int(document.get("options", {}).get("inline", 0)),
        trace_id=meta.get("trace_id"),
        idempotency_key=key,
        payload_hash=delayed_hash(digest, delay),
        delay=delay,
    )


def _delay_of(document: dict[str, Any]) -> Delay:
    """Raises ValueError for members that cannot be read."""
    delay, not_before = document.get("delay"), document.get("not_before")
    return Delay(None if delay is None else duration_of(delay), None if not_before is None else instant_of(not_before))


def _delay_problems(document: dict[str, Any], now: float, seconds_max: float) -> tuple[Problem, ...]:
    try:
        problem = delay_problem(_delay_of(document), now, seconds_max, "PYOCO_PRICED_DELAY_MAX_SEC")
    except ValueError:  # its own check reports it
        return ()
    return () if problem is None else (Problem((problem[0],), problem[1]),)


def _steps(pointer: str) -> Loc:
    """Return the location up to the first name that may not be shown: names within `inputs` belong to the caller."""
    shown: list[str] = []
    for step in pointer.split("/")[1:]:
        if not _SHOWABLE.fullmatch(step):
            break
        shown.append(step)
    return tuple(shown)


def _pack_problems(document: dict[str, Any], offered: Mapping[str, PackSpec], here: Here) -> tuple[Problem, ...]:
    """Return the problems that the pack itself reports; none if the pack does not exist."""
    pack_type, inputs = document.get("pack_type"), document.get("inputs")
    if not isinstance(pack_type, str) or not is_pack_name(pack_type):
        return ()
    if pack_type not in offered:
        return (Problem(("pack_type",), f"this pack is not offered here; there are: {', '.join(offered)}"),)
    if not isinstance(inputs, dict):
        return ()
    problems = offered[pack_type].check(inputs, here)
    return tuple(Problem(("inputs", *_shown(problem.loc)), problem.msg) for problem in problems)


def _shown(loc: Loc) -> Loc:
    return tuple(step for step in loc if isinstance(step, int) or _SHOWABLE.fullmatch(step))


@dataclass(frozen=True)
class _Object(Members):
    """An object with a closed set of members: unknown ones are named in the error, since most are typos."""

    def __call__(self, value: object, loc: Loc = ()) -> tuple[Problem, ...]:
        if not isinstance(value, dict):
            return super().__call__(value, loc)
        known = {name: item for name, item in value.items() if name in self.members}
        unknown = [_unknown(problem, loc) for problem in unknown_members(loc, value, self.members)]
        return (*super().__call__(known, loc), *unknown)


def _unknown(problem: Problem, loc: Loc) -> Problem:
    """Return the problem without a name that must not be shown."""
    is_shown = _SHOWABLE.fullmatch(str(problem.loc[-1])) is not None
    return problem if is_shown else Problem(loc, f"a member of it {problem.msg}", problem.type)


def _rule(holds: Callable[[Any], bool], message: str) -> Check:
    return lambda value, loc: () if holds(value) else (Problem(loc, message),)


def _whole_number(at_least: int, at_most: int) -> Check:
    """An integer as JSON Schema defines it: 90.0 is valid, 90.5 and true are not."""

    def holds(value: Any) -> bool:
        number = decimal_of(value)
        return number is not None and at_least <= number <= at_most and number == number.to_integral_value()

    return _rule(holds, f"must be an integer from {at_least} to {at_most}")


def _is_score(value: Any) -> bool:
    """At most four decimals, counted in the text: 0.80000 has five."""
    number = decimal_of(value)
    if number is None or not 0 <= number <= 1:
        return False
    exponent = number.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= -4


def _usd(value: Any, loc: Loc) -> tuple[Problem, ...]:
    """PRICED-34. JSON numbers are refused: a client or proxy may have converted them to a double."""
    if not isinstance(value, str):
        return (Problem(loc, "must be a string with four decimals, not a number: 0.2500"),)
    try:
        parse_usd(value)
    except ValueError as error:
        return (Problem(loc, str(error)),)
    return ()


_FLAG = Member(_rule(lambda value: isinstance(value, bool), "must be true or false"))
_TRACE = _rule(
    lambda value: isinstance(value, str) and TRACE_ID.fullmatch(value) is not None,
    "must have 1 to 64 of: A-Z a-z 0-9 _ -",
)

_RESERVATION = _Object(
    {
        "max_cost_usd": Member(_usd, is_required=True),
        "timebox_sec": Member(_whole_number(1, TIMEBOX_SEC_MAX)),
        "min_reliability_score": Member(_rule(_is_score, "must be a number from 0 to 1 with at most four decimals")),
    }
)
_META = _Object(
    {
        "trace_id": Member(_TRACE),
        "client_version": Member(text(0, CLIENT_VERSION_LENGTH_MAX)),
        "profile_version": Member(choice((PROFILE_VERSION,))),
    }
)


def _readable(read: Callable[[Any], float]) -> Check:
    def check(value: Any, loc: Loc) -> tuple[Problem, ...]:
        try:
            read(value)
        except ValueError as error:
            return (Problem(loc, str(error)),)
        return ()

    return check


_BODY = _Object(
    {
        "pack_type": Member(
            _rule(lambda value: isinstance(value, str) and is_pack_name(value), "must be the name of a pack"),
            is_required=True,
        ),
        "inputs": Member(_rule(lambda value: isinstance(value, dict), "must be an object"), is_required=True),
        "reservation": Member(_RESERVATION, is_required=True),
        "options": Member(_Object({"inline": Member(_whole_number(0, 1))})),
        "artifacts": Member(_Object({"include_markdown": _FLAG, "include_docx": _FLAG})),
        "meta": Member(_META),
        "delay": Member(_readable(duration_of)),
        "not_before": Member(_readable(instant_of)),
        # RETRY-19
        "retry": Member(_rule(lambda _: False, CATALOGUE[64].en)),
        "timeout": Member(_rule(lambda _: False, CATALOGUE[64].en)),
    }
)
assert Decimal(RELIABILITY_E4_DEFAULT).scaleb(-4) == Decimal("0.8")
