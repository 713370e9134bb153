"""Templates in the values that a schedule submits (SCHED-15): `{{ scheduled_time.date }}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from pyoco_server.core.schedules.when import local_text
from pyoco_server.errors import Problem

__all__ = ["TemplateContext", "render", "template_problems"]

_NAMES = ("scheduled_time", "previous_time", "schedule_name", "run_id")
_FORMS = ("date", "time", "unix", "utc")
_KNOWN = frozenset({*_NAMES, *(f"{name}.{form}" for name in ("scheduled_time", "previous_time") for form in _FORMS)})
#: A literal `\\{{`, a template, or the beginning of one that has no end. Braces end the search for an end, which would
#: otherwise read the rest of the text for each beginning.
_PART = re.compile(r"\\\{\{|\{\{(?P<expr>[^{}]*)\}\}|\{\{")
_ALONE = re.compile(r"\{\{\s*([a-z_.]+)\s*\}\}")

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class TemplateContext:
    """What the templates of one tick stand for."""

    zone: tzinfo
    scheduled_time: float
    #: Finds the tick before; asked for only where a template names it, because that is a search.
    find_previous: Callable[[], float | None]
    schedule_name: str
    run_id: str

    def value(self, expr: str) -> str | int | None:
        name, _, form = expr.partition(".")
        if name in ("schedule_name", "run_id"):
            return self.schedule_name if name == "schedule_name" else self.run_id
        instant = self.scheduled_time if name == "scheduled_time" else self.find_previous()
        if instant is None:
            return None
        moment = datetime.fromtimestamp(instant, self.zone)
        forms: dict[str, Callable[[], str | int]] = {
            "": lambda: local_text(instant, self.zone),
            "date": lambda: f"{moment:%Y-%m-%d}",
            "time": lambda: f"{moment:%H:%M:%S}",
            "unix": lambda: int(instant),
            "utc": lambda: local_text(instant, UTC),
        }
        return forms[form]()


def template_problems(value: Any, loc: Loc = ()) -> Iterator[Problem]:
    """Yield the problem of each invalid template in the texts of a value, with its place."""
    for place, text in _texts(value, loc):
        for part in _PART.finditer(text):
            expr, at = part["expr"], part.start()
            if part[0] == "{{":
                message = f"the template at character {at} has no end; write \\{{{{ for a literal {{{{"
                message_ja = f"{at}文字目のテンプレートが閉じていません。{{{{ そのものは \\{{{{ と書きます"
                yield Problem(place, message, "template", msg_ja=message_ja)
            elif expr is not None and expr.strip() not in _KNOWN:
                known = (
                    "scheduled_time, previous_time (each also with .date, .time, .unix, .utc), schedule_name, run_id"
                )
                message = f"the template at character {at} is unknown; there are: {known}"
                message_ja = f"{at}文字目のテンプレートは使えません。使えるもの: {known}"
                yield Problem(place, message, "template", msg_ja=message_ja)


def _texts(value: Any, loc: Loc) -> Iterator[tuple[Loc, str]]:
    if isinstance(value, str):
        yield loc, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, (*loc, name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _texts(item, (*loc, index))


def render(value: Any, context: TemplateContext) -> Any:
    """Return the value with every template replaced. A template alone keeps its type: an integer, text, or null."""
    if isinstance(value, str):
        return _rendered(value, context)
    if isinstance(value, Mapping):
        return {name: render(item, context) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [render(item, context) for item in value]
    return value


def _rendered(text: str, context: TemplateContext) -> str | int | None:
    if "{{" not in text:
        return text
    alone = _ALONE.fullmatch(text)
    if alone is not None:
        return context.value(alone[1])

    def replaced(part: re.Match[str]) -> str:
        if part["expr"] is None:
            return "{{"
        found = context.value(part["expr"].strip())
        return "" if found is None else str(found)

    return _PART.sub(replaced, text)
