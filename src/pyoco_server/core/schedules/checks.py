"""Checks of the members of a schedule: every problem, with its place, in both languages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import tzinfo
from typing import Any, Final, TypeVar

from pyoco_server.core.durations import duration_of, instant_of
from pyoco_server.core.unknown import unknown_member
from pyoco_server.errors import Problem

__all__ = ["Checks", "Loc"]

T = TypeVar("T")
Loc = tuple[str | int, ...]

_TEXT_MAX: Final = 512
_DURATION_JA: Final = "秒数、または 30s・1h30m のような期間を指定してください"
_INSTANT_JA: Final = "unix秒、またはRFC 3339の日時（例: 2026-12-01T09:00:00+09:00）を指定してください"


class Checks:
    """Collects the problems of one document. Each reader returns a value of the right type, whatever was sent."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def wrong(self, loc: Loc, msg: str, msg_ja: str, kind: str = "value", **more: Any) -> None:
        self.problems.append(Problem(loc, msg, kind, msg_ja=msg_ja, **more))

    def unknown(self, loc: Loc, given: Mapping[str, Any], known: Collection[str]) -> None:
        for name in given:
            if name not in known and len(self.problems) < 100:
                found = unknown_member(loc, name, known)
                hint = "" if found.nearest is None else f"。{found.nearest} の間違いではありませんか"
                self.problems.append(
                    Problem(found.loc, found.msg, found.type, found.nearest, msg_ja=f"不明なメンバーです{hint}")
                )

    def mapping(self, value: Any, loc: Loc) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self.wrong(loc, "must be an object", "オブジェクトで指定してください", "type")
        return {}

    def text(self, value: Any, loc: Loc, most: int = _TEXT_MAX) -> str:
        if not isinstance(value, str):
            self.wrong(loc, "must be a string", "文字列で指定してください", "type")
            return ""
        if not 1 <= len(value) <= most:
            self.wrong(loc, f"must have 1 to {most} characters", f"1～{most}文字で指定してください", "length")
        return value

    def texts(self, value: Any, loc: Loc, most: int, each_most: int = _TEXT_MAX) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            self.wrong(loc, "must be an array", "配列で指定してください", "type")
            return ()
        if len(value) > most:
            self.wrong(loc, f"has at most {most} items", f"{most}個以内で指定してください", "too_long")
            return ()
        return tuple(self.text(item, (*loc, index), each_most) for index, item in enumerate(value))

    def matching(self, value: Any, loc: Loc, fits: Callable[[str], bool], rule: str, rule_ja: str) -> str:
        if isinstance(value, str) and fits(value):
            return value
        self.wrong(loc, rule, rule_ja, "pattern")
        return ""

    def choice(self, value: Any, loc: Loc, values: Collection[str], default: str) -> str:
        if isinstance(value, str) and value in values:
            return value
        names = ", ".join(values)
        self.wrong(loc, f"must be one of {names}", f"次のいずれかを指定してください: {names}")
        return default

    def flag(self, value: Any, loc: Loc) -> bool:
        if not isinstance(value, bool):
            self.wrong(loc, "must be true or false", "true か false を指定してください", "type")
        return value is True

    def duration(self, value: Any, loc: Loc, least: float, most: float) -> float:
        return self.seconds(lambda: duration_of(value), loc, least, most)

    def seconds(self, read: Callable[[], float], loc: Loc, least: float, most: float) -> float:
        try:
            seconds = read()
        except ValueError as error:
            self.wrong(loc, str(error), _DURATION_JA)
            return least
        if not least <= seconds <= most:
            rule = f"must be from {least:.0f} to {most:.0f} seconds"
            self.wrong(loc, rule, f"{least:.0f}～{most:.0f}秒の範囲で指定してください")
            return least
        return seconds

    def whole_seconds(self, seconds: float, loc: Loc) -> int:
        """SCHED-11"""
        if seconds != int(seconds):
            self.wrong(loc, "must be whole seconds", "1秒単位で指定してください")
        return int(seconds)

    def instant(self, value: Any, loc: Loc, zone: tzinfo) -> float | None:
        """Text without an offset is a wall time of the zone."""
        if value is None:
            return None
        try:
            return instant_of(value, zone)
        except ValueError as error:
            self.wrong(loc, str(error), _INSTANT_JA)
            return None
