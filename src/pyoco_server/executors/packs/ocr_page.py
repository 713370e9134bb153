"""Reads one page, from pixels to words, always in the same order (PRICED-148)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyoco_server.core.ocr.ink import unread
from pyoco_server.core.ocr.layout import BLANK, LINE_HEIGHT_GOOD, Layout, needed, scale_of, sniff, zones
from pyoco_server.core.ocr.merging import merge, with_gaps
from pyoco_server.core.ocr.page import Box, Raster, TextLine
from pyoco_server.core.ocr.profiles import OcrProfile
from pyoco_server.ports.ocr.port import Engine, Images, OutOfTime

__all__ = ["PageRead", "PageReader"]

#: A pass scales its lines to about this height: engines also misread very large letters.
_TITLE_HEIGHT: Final = 48
_TITLE_SCALE_MIN: Final = 0.25
#: Share of the remaining time for a pass that only covers titles or fine print. The body pass may still read those.
_EXTRA_SHARE: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class PageRead:
    """The lines read on a page, and how they were read."""

    lines: Sequence[TextLine]
    layout: str
    mode: str | None
    preprocessing: tuple[str, ...]
    passes: tuple[str, ...]

    def meta(self) -> dict[str, Any]:
        """Return the entry for `meta.ocr`."""
        return {
            "layout": self.layout,
            "mode": self.mode,
            "preprocessing": list(self.preprocessing),
            "passes": list(self.passes),
        }


@dataclass(frozen=True)
class PageReader:
    """Preflight, mode, preprocessing, passes: each step is done once and never revised."""

    images: Images
    engine: Engine
    profile: OcrProfile
    languages: tuple[str, ...]
    #: Returns the seconds left; raises if the run was cancelled.
    seconds_left: Callable[[], float]

    def read(self, raster: Raster) -> PageRead:
        """Read a page. Raises EngineFailed, and OutOfTime if not even the body was read."""
        facts = self.images.look(raster)
        layout = sniff(facts.ink)
        if layout.kind == BLANK:
            return PageRead(lines=(), layout=BLANK, mode=None, preprocessing=(), passes=())
        mode = self.profile.modes[layout.kind]  # fixed: all passes use it, whatever they find
        steps = needed(self.profile, facts, layout)
        if steps:
            scale = scale_of(layout.line_height, raster.width * raster.height)
            raster = self.images.prepare(raster, steps, scale)
            layout = replace(sniff(self.images.look(raster).ink), kind=layout.kind)
        found, done = self._passes(raster, layout, mode)
        lines = found.pop("body")
        for again in found.values():
            lines = merge(lines, again)
        lines = self._what_was_left(raster, layout, mode, lines)
        return PageRead(lines=lines, layout=layout.kind, mode=mode, preprocessing=steps, passes=done)

    def _what_was_left(self, raster: Raster, layout: Layout, mode: str, lines: list[TextLine]) -> list[TextLine]:
        """Engines silently skip some lines, for example those that touch a frame. Areas with ink but no text are read
        once more, separately; areas that are unread even then are marked."""
        left = unread(layout.ink, lines, layout.line_height)
        if left:
            with contextlib.suppress(OutOfTime):
                lines = merge(lines, self._part(raster, left, mode, 1.0, _EXTRA_SHARE))
        return with_gaps(lines, unread(layout.ink, lines, layout.line_height))

    def _passes(self, raster: Raster, layout: Layout, mode: str) -> tuple[dict[str, list[TextLine]], tuple[str, ...]]:
        """Return the lines of each pass that had something to read. Extra passes are skipped if time is short: their
        content was read with the body, or is marked as unread."""
        found: dict[str, list[TextLine]] = {}
        for name in self.profile.passes:
            if name == "body":
                found[name] = self._body(raster, layout, mode)
                continue
            boxes = zones(layout, name)
            if boxes:
                try:
                    found[name] = self._part(raster, boxes, mode, _scale(name, boxes), _EXTRA_SHARE)
                except OutOfTime:
                    continue
        return found, tuple(found)

    def _body(self, raster: Raster, layout: Layout, mode: str) -> list[TextLine]:
        """Read the complete page; in `columns` mode one column after the other."""
        engine_mode = "block" if mode == "columns" else mode
        boxes = zones(layout, "body")
        if mode != "columns" or not boxes:
            return self._lines(raster, engine_mode, 1.0)
        return [line for box in boxes for line in self._part(raster, [box], engine_mode, 1.0, 1.0)]

    def _part(self, raster: Raster, boxes: Sequence[Box], mode: str, scale: float, share: float) -> list[TextLine]:
        engine_mode = "block" if mode == "columns" else mode
        part, left, top = self.images.part(raster, boxes, scale)
        return [_moved(line, scale, left, top) for line in self._lines(part, engine_mode, share)]

    def _lines(self, raster: Raster, mode: str, share: float) -> list[TextLine]:
        seconds = self.seconds_left()
        if seconds <= 0:
            raise OutOfTime("no time is left for this page")
        return self.engine.read(raster, mode, self.languages, seconds * share)


def _scale(name: str, boxes: Sequence[Box]) -> float:
    """Scale by the tallest title, or by the smallest fine print."""
    if name == "title":
        return min(1.0, max(_TITLE_SCALE_MIN, _TITLE_HEIGHT / max(box.height for box in boxes)))
    area = sum(box.width * box.height for box in boxes)
    return scale_of(min(LINE_HEIGHT_GOOD, *(box.height for box in boxes)), area)


def _moved(line: TextLine, scale: float, left: int, top: int) -> TextLine:
    words = tuple(replace(word, box=word.box.within(scale, left, top)) for word in line.words)
    return TextLine(words, line.box.within(scale, left, top))
