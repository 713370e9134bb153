"""Read a schedule as its author writes it (section 7.1 of the contract), with all problems at once (SCHED-31)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any, Final

from pyoco_server.core.durations import duration_of
from pyoco_server.core.schedules.checks import Checks, Loc
from pyoco_server.core.schedules.cron import CronError
from pyoco_server.core.schedules.ids import NAME_RULE, RESERVED, is_schedule_name
from pyoco_server.core.schedules.progress import upcoming
from pyoco_server.core.schedules.record import CatchUp, Definition, Kind, Overlap, compiled, every_of_cron
from pyoco_server.core.schedules.templates import TemplateContext
from pyoco_server.core.schedules.what import TRIED_ONCE, Offer, check_what
from pyoco_server.core.schedules.zones import zone_of
from pyoco_server.errors import InvalidSchedule, TriedOnce

__all__ = ["MEMBERS", "READ_ONLY", "read_schedule"]

_MINUTE, _DAY = 60.0, 86_400.0
_AT_MAX: Final = 1000
_LABELS_MAX: Final = 50
_REASON_MAX: Final = 4096

#: What an author writes.
MEMBERS: Final = (
    "name",
    "what",
    "when",
    "timezone",
    "start_at",
    "end_at",
    "jitter",
    "overlap",
    "catch_up",
    "paused",
    "pause_reason",
    "labels",
    "notify",
)
#: What answers have besides (SCHED-9). Ignored when sent back.
READ_ONLY: Final = (
    "id",
    "created_at",
    "updated_at",
    "updated_by",
    "tenant_id",
    "next_ticks",
    "last_tick",
    "waiting_ticks",
    "overdue",
)
_NAME_JA: Final = "英数字・'_'・'-' の1～64文字で、先頭は英数字にしてください"


def read_schedule(document: Any, now: float, offer: Offer, loc: Loc = ("body",), name: str | None = None) -> Definition:
    """Return the definition. `name`: that of the path, which the body may repeat.

    Raises InvalidSchedule with every problem, TriedOnce if that is all that is wrong.
    """
    checks = Checks()
    given = checks.mapping(document, loc)
    checks.unknown(loc, given, (*MEMBERS, *READ_ONLY) if set(given) & set(READ_ONLY) else MEMBERS)
    given = {each: value for each, value in given.items() if value is not None}
    made = _Reader(checks, given, loc, now, offer, name).definition()
    if checks.problems:
        refusal = TriedOnce if all(each.type == TRIED_ONCE for each in checks.problems) else InvalidSchedule
        raise refusal(checks.problems[0].msg, problems=tuple(checks.problems))
    return made


class _Reader:
    def __init__(
        self, checks: Checks, given: dict[str, Any], loc: Loc, now: float, offer: Offer, name: str | None
    ) -> None:
        self.checks, self.given, self.loc, self.now, self.offer, self.named = checks, given, loc, now, offer, name

    def definition(self) -> Definition:
        checks = self.checks
        zone = self._zone()
        when = self._when(zone)
        start_at, end_at = (self._optional(each, checks.instant, None, zone) for each in ("start_at", "end_at"))
        if start_at is not None and end_at is not None and end_at <= start_at:
            checks.wrong(self._at("end_at"), "must be after start_at", "start_at より後にしてください")
        window = {"policy": CatchUp.LAST.value, "window": _DAY} | self._optional("catch_up", checks.mapping, {})
        checks.unknown(self._at("catch_up"), window, ("policy", "window"))
        made = Definition(
            name=self._name(),
            what={},
            when=when,
            timezone="UTC" if zone is UTC else str(self.given.get("timezone", "UTC")),
            start_at=start_at,
            end_at=end_at,
            jitter=self._optional("jitter", checks.duration, 0.0, 0.0, 60 * _MINUTE),
            overlap=Overlap(self._optional("overlap", checks.choice, Overlap.SKIP, tuple(Overlap), Overlap.SKIP)),
            catch_up=CatchUp(
                checks.choice(window["policy"], self._at("catch_up", "policy"), tuple(CatchUp), CatchUp.LAST)
            ),
            window=checks.duration(window["window"], self._at("catch_up", "window"), 0.0, 30 * _DAY),
            paused=self._optional("paused", checks.flag, False),
            pause_reason=self._optional("pause_reason", checks.text, None, _REASON_MAX),
            labels=self._optional("labels", checks.texts, (), _LABELS_MAX, 128),
        )
        self._check_notify()
        if when:
            self._check_ticks(made)
        what = check_what(checks, self.given.get("what"), self._at("what"), self._sample(made, zone), self.offer)
        if what.get("kind") == Kind.PACK and made.overlap is Overlap.CANCEL_OLD:
            message = "a priced run cannot be cancelled: use another overlap policy"
            checks.wrong(self._at("overlap"), message, "課金runは取り消せないため、cancel_old は使えません")
        return replace(made, what=what)

    def _at(self, *names: str | int) -> Loc:
        return (*self.loc, *names)

    def _optional(self, name: str, read: Callable[..., Any], default: Any, *more: Any) -> Any:
        return read(self.given[name], self._at(name), *more) if name in self.given else default

    def _name(self) -> str:
        name = self.given.get("name", self.named)
        if name is None:
            self.checks.wrong(self._at("name"), "is required", "必須です", "missing")
            return ""
        if name == RESERVED:
            self.checks.wrong(self._at("name"), f"{RESERVED} is reserved", f"{RESERVED} は予約されています")
        elif not isinstance(name, str) or not is_schedule_name(name):
            self.checks.wrong(self._at("name"), NAME_RULE, _NAME_JA, "pattern")
        elif self.named is not None and name != self.named:
            self.checks.wrong(self._at("name"), "must equal the name in the path", "パスの名前と一致させてください")
        return str(name)

    def _zone(self) -> tzinfo:
        given = self.given.get("timezone", "UTC")
        try:
            return zone_of(given if isinstance(given, str) else "")
        except ValueError as error:
            message_ja = "Asia/Tokyo や UTC のようなIANAタイムゾーン名を指定してください"
            self.checks.wrong(self._at("timezone"), str(error), message_ja)
            return UTC

    def _when(self, zone: tzinfo) -> dict[str, Any]:
        loc = self._at("when")
        if "when" not in self.given:
            self.checks.wrong(loc, "is required", "必須です", "missing")
            return {}
        when = self.checks.mapping(self.given["when"], loc)
        self.checks.unknown(loc, when, ("cron", "every", "offset", "at"))
        kinds = [each for each in ("cron", "every", "at") if each in when]
        if len(kinds) != 1:
            message = "must have exactly one of cron, every and at"
            self.checks.wrong(loc, message, "cron・every・at のいずれか1つだけを指定してください")
            return {}
        if "offset" in when and kinds != ["every"]:
            self.checks.wrong((*loc, "offset"), "belongs to every", "offset は every とだけ使えます")
        before = len(self.checks.problems)
        read = {"cron": self._cron, "every": self._every, "at": self._instants}[kinds[0]](when, zone)
        return read if len(self.checks.problems) == before else {}

    def _cron(self, when: dict[str, Any], _: tzinfo) -> dict[str, Any]:
        loc = self._at("when", "cron")
        text = when["cron"]
        if not isinstance(text, str):
            self.checks.wrong(loc, "must be a string", "文字列で指定してください", "type")
            return {}
        duration = every_of_cron(text)
        if duration is not None:
            seconds = self.checks.seconds(lambda: duration_of(duration), loc, 1, 366 * _DAY)
            return {"cron": text, "seconds": self.checks.whole_seconds(seconds, loc)}
        try:
            compiled(Definition(name="", what={}, when={"cron": text}))
        except CronError as error:
            place = {"field": error.field, "position": error.position}
            self.checks.wrong(loc, str(error), error.message_ja, "cron", **place)
        return {"cron": text}

    def _every(self, when: dict[str, Any], _: tzinfo) -> dict[str, Any]:
        loc = self._at("when", "every")
        seconds = self.checks.whole_seconds(self.checks.duration(when["every"], loc, 1, 366 * _DAY), loc)
        if when.get("offset") is None:
            return {"every": seconds}
        loc = self._at("when", "offset")
        offset = self.checks.duration(when["offset"], loc, 0, 366 * _DAY)
        return {"every": seconds, "offset": self.checks.whole_seconds(offset, loc)}

    def _instants(self, when: dict[str, Any], zone: tzinfo) -> dict[str, Any]:
        loc, given = self._at("when", "at"), when["at"]
        if not isinstance(given, list) or not 1 <= len(given) <= _AT_MAX:
            self.checks.wrong(loc, f"must be an array of 1 to {_AT_MAX} instants", f"1～{_AT_MAX}個の日時の配列です")
            return {}
        found = set()
        for index, each in enumerate(given):
            instant = self.checks.instant(each, (*loc, index), zone)
            if instant is None and each is None:
                self.checks.wrong((*loc, index), "must be an instant", "日時を指定してください", "type")
            if instant is not None:
                found.add(self.checks.whole_seconds(instant, (*loc, index)))
        return {"at": sorted(found)}

    def _check_notify(self) -> None:
        if self.given.get("notify", []) != []:
            message = "must be an empty array: no receivers are offered"
            self.checks.wrong(self._at("notify"), message, "通知先はまだ指定できません。空の配列にしてください")

    def _check_ticks(self, made: Definition) -> None:
        """SCHED-10: an expression that never matches."""
        if "cron" in made.when and upcoming(_alone(made), self.now) is None:
            message = "has no tick within the next 8 years"
            loc = self._at("when", "cron")
            self.checks.wrong(loc, message, "8年以内に該当する日時がありません", "cron", field=None, position=0)

    def _sample(self, made: Definition, zone: tzinfo) -> TemplateContext:
        tick = upcoming(made, self.now) if made.when else None
        at = tick if tick is not None else int(self.now)
        return TemplateContext(zone, at, lambda: at - _MINUTE, made.name, "00000000-0000-5000-8000-000000000000")


def _alone(made: Definition) -> Definition:
    """Return the definition without its bounds."""
    return Definition(name=made.name, what={}, when=made.when, timezone=made.timezone)
