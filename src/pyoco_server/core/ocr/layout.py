"""The preflight: determines the kind of page before any text is read (PRICED-148)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyoco_server.core.ocr.ink import bands, gaps, row_of, runs, without_rules
from pyoco_server.core.ocr.page import Box, Ink, PageFacts
from pyoco_server.core.ocr.profiles import STEPS, OcrProfile

__all__ = ["BLANK", "Layout", "Region", "needed", "scale_of", "sniff", "zones"]

BLANK: Final = "blank"
#: The line height in pixels for good recognition; below the second value, recognition is poor.
LINE_HEIGHT_GOOD: Final = 36
LINE_HEIGHT_POOR: Final = 24
_SCALE_MAX: Final = 4.0
#: The pixel limit of an enlarged page: more costs seconds and does not improve recognition.
PIXELS_MAX: Final = 16_000_000

#: The background brightness below which a page has light text on a dark background.
DARK_MAX: Final = 110
#: The maximum share of the page that may be specks.
NOISE_MAX: Final = 0.003

_TITLE: Final = (1.5, 6.0)
_FINE_PRINT: Final = (0.2, 0.7)
_COLUMN_PART: Final = 0.15
#: In line heights. Narrower columns are names with values, or cells of a table.
_COLUMN_WIDTH: Final = 9
_COLUMN_FILLED: Final = 0.7
_COLUMN_LINES: Final = 3
_SPLITS_MAX: Final = 2


@dataclass(frozen=True)
class Region:
    """A part of a page that is read from top to bottom, and the strips in it that look like lines of text."""

    box: Box
    strips: tuple[Box, ...]


@dataclass(frozen=True)
class Layout:
    #: `blank`, or one of `profiles.LAYOUTS`.
    kind: str
    #: In reading order.
    regions: tuple[Region, ...]
    #: Of most of the text, in pixels; 0 if there is none.
    line_height: int
    #: The ink without anything that is not text.
    ink: Ink


def sniff(ink: Ink) -> Layout:
    """Determine the layout of a page. O(n) squares, some big-integer operations for each row."""
    clean = without_rules(ink)
    page = _Page(clean)
    groups = page.groups()
    if not groups:
        return Layout(BLANK, (), 0, clean)
    regions = tuple(page.region(span) for group in groups for span in group)
    kind = "columns" if any(len(group) > 1 for group in groups) else _kind(page)
    return Layout(kind, regions, page.line_height * ink.cell, clean)


#: A part of the ink: left, right, top, bottom, in squares.
_Span = tuple[int, int, int, int]


class _Page:
    def __init__(self, ink: Ink) -> None:
        self.ink = ink
        self.bands = bands(ink.rows)
        heights = [(bottom - top, _extent(ink, (0, ink.across, top, bottom))) for top, bottom in self.bands]
        self.line_height = _weighted_median(heights)
        found = runs(row_of(ink.rows), ink.across)
        self.left, self.right = (found[0][0], found[-1][1]) if found else (0, 0)

    def groups(self) -> list[list[_Span]]:
        """Return the page from top to bottom in groups: each one a single column, or columns side by side."""
        return self._groups((self.left, self.right, 0, len(self.ink.rows)), _SPLITS_MAX)

    def _groups(self, span: _Span, splits: int) -> list[list[_Span]]:
        left, right, top, _ = span
        lines = bands(_rows(self.ink, span), top)
        groups: list[list[_Span]] = []
        at = 0
        while at < len(lines):
            end, gutter = self._reach(lines, at, (left, right)) if splits else (at + 1, None)
            part = (left, right, lines[at][0], lines[end - 1][1])
            if gutter is None or not self._are_columns(part, gutter):
                end, part = at + 1, (left, right, *lines[at])
                if groups and len(groups[-1]) == 1:
                    part = (left, right, groups.pop()[0][2], part[3])
                groups.append([part])
            else:
                sides = ((left, gutter[0], part[2], part[3]), (gutter[1], right, part[2], part[3]))
                groups.append([inner for side in sides for group in self._groups(side, splits - 1) for inner in group])
            at = end
        return groups

    def _reach(
        self, lines: Sequence[tuple[int, int]], at: int, sides: tuple[int, int]
    ) -> tuple[int, tuple[int, int] | None]:
        """Return how many of the lines starting at `at` share a gutter, and its position."""
        union, gutter, end = 0, None, at
        for top, bottom in lines[at:]:
            union |= row_of(_rows(self.ink, (*sides, top, bottom)))
            wider = self._gutter(union, sides)
            if wider is None:
                break
            gutter, end = wider, end + 1
        return max(end, at + 1), gutter

    def _gutter(self, row: int, sides: tuple[int, int]) -> tuple[int, int] | None:
        least = max(2, round(self.line_height * 0.8))
        column = (sides[1] - sides[0]) * _COLUMN_PART
        wide = [
            gap
            for gap in gaps(row, self.ink.across)
            if gap[1] - gap[0] >= least and gap[0] - sides[0] >= column and sides[1] - gap[1] >= column
        ]
        return max(wide, key=lambda gap: gap[1] - gap[0], default=None)

    def _are_columns(self, span: _Span, gutter: tuple[int, int]) -> bool:
        """Return whether both sides are columns of text: those are filled across, unlike names with values or cells of
        a table."""
        left, right, top, bottom = span
        for side in ((left, gutter[0], top, bottom), (gutter[1], right, top, bottom)):
            lines = bands(_rows(self.ink, side), top)
            if len(lines) < _COLUMN_LINES or side[1] - side[0] < _COLUMN_WIDTH * self.line_height:
                return False
            filled = [_extent(self.ink, (side[0], side[1], *line)) / (side[1] - side[0]) for line in lines]
            if statistics.fmean(filled) < _COLUMN_FILLED:
                return False
        return True

    def region(self, span: _Span) -> Region:
        left, right, top, bottom = span
        strips = [self._box((left, right, *line)) for line in bands(_rows(self.ink, span), top)]
        return Region(self._box((left, right, top, bottom)), tuple(strips))

    def _box(self, span: _Span) -> Box:
        left, right, top, bottom = (number * self.ink.cell for number in span)
        return Box(left, top, right, bottom)


def _rows(ink: Ink, span: _Span) -> list[int]:
    left, right, top, bottom = span
    window = ((1 << (right - left)) - 1) << (ink.across - right)
    return [row & window for row in ink.rows[top:bottom]]


def _extent(ink: Ink, span: _Span) -> int:
    found = runs(row_of(_rows(ink, span)), ink.across)
    return found[-1][1] - found[0][0] if found else 0


def _weighted_median(pairs: Sequence[tuple[int, int]]) -> int:
    """Return the height that half of all text, weighted by length, does not exceed."""
    total, seen = sum(weight for _, weight in pairs), 0
    for height, weight in sorted(pairs):
        seen += weight
        if 2 * seen >= total:
            return height
    return 0


def _kind(page: _Page) -> str:
    lines = page.bands
    if len(lines) == 1:
        return "line" if page.right - page.left >= 2 * page.line_height else "block"
    far = 4 * page.line_height
    torn = narrow = 0
    for top, bottom in lines:
        row = row_of(page.ink.rows[top:bottom])
        torn += any(gap[1] - gap[0] >= far for gap in gaps(row, page.ink.across))
        narrow += _extent(page.ink, (0, page.ink.across, top, bottom)) < page.ink.across // 4
    return "scattered" if len(lines) >= 3 and 2 * (torn + narrow) > len(lines) else "block"


def needed(profile: OcrProfile, facts: PageFacts, layout: Layout) -> tuple[str, ...]:
    """Return the steps of preprocessing that a page with these facts needs, in order."""
    is_needed = {
        "invert": facts.background < DARK_MAX,
        "flatten": facts.shade > 48,
        "contrast": 0 < facts.contrast < 110,
        "denoise": facts.noise > NOISE_MAX,
        "enlarge": 0 < layout.line_height < LINE_HEIGHT_POOR,
    }
    wanted = {"never": False, "always": True}
    return tuple(step for step in STEPS if wanted.get(profile.preprocessing[step], is_needed[step]))


def scale_of(line_height: int, pixels: int) -> float:
    """Return the factor by which to enlarge an image of this many pixels so that lines of this height become
    readable."""
    wanted = min(_SCALE_MAX, LINE_HEIGHT_GOOD / max(1, line_height))
    return max(1.0, min(wanted, math.sqrt(PIXELS_MAX / max(1, pixels))))


def zones(layout: Layout, name: str) -> list[Box]:
    """Return the areas that a pass reads: for the title, strips much higher than most lines; for the fine print, much
    lower ones; for the body, everything, so that nothing depends on a guess."""
    if name == "body":
        return [region.box for region in layout.regions]
    low, high = (share * layout.line_height for share in (_TITLE if name == "title" else _FINE_PRINT))
    strips = [strip for region in layout.regions for strip in region.strips]
    return [strip for strip in strips if low <= strip.height <= high]
