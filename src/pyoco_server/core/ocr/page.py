"""A page as an image, and the text read from it. Coordinates are pixels of the page, from its upper left corner."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Box", "Ink", "PageFacts", "Raster", "TextLine", "TextWord", "bounds"]


@dataclass(frozen=True)
class Box:
    """A rectangle. `right` and `bottom` are the first pixels outside."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def middle(self) -> int:
        return (self.top + self.bottom) // 2

    def across(self, other: Box) -> int:
        """Return the width of the horizontal overlap of the two boxes."""
        return max(0, min(self.right, other.right) - max(self.left, other.left))

    def beside(self, other: Box) -> int:
        """Return the height of the vertical overlap of the two boxes."""
        return max(0, min(self.bottom, other.bottom) - max(self.top, other.top))

    def is_on_row_of(self, other: Box) -> bool:
        """Return whether at least half the height of the lower box overlaps the other vertically."""
        return 2 * self.beside(other) >= min(self.height, other.height) > 0

    def within(self, scale: float, left: int, top: int) -> Box:
        """Convert from the coordinates of a part that begins at `left` and `top` and was enlarged by `scale` to those
        of the page."""
        numbers = (
            self.left / scale + left,
            self.top / scale + top,
            self.right / scale + left,
            self.bottom / scale + top,
        )
        return Box(*(round(number) for number in numbers))


def bounds(boxes: Iterable[Box]) -> Box:
    """Return the smallest box around all of them. Raises ValueError if there are none."""
    boxes = list(boxes)
    return Box(
        min(box.left for box in boxes),
        min(box.top for box in boxes),
        max(box.right for box in boxes),
        max(box.bottom for box in boxes),
    )


@dataclass(frozen=True)
class TextWord:
    """A piece of text between spaces; in scripts without spaces, whatever the engine reported as one piece."""

    #: Empty: there is text here, but it could not be read.
    text: str
    #: 0 to 1, as reported by the engine.
    confidence: float
    box: Box


@dataclass(frozen=True)
class TextLine:
    words: tuple[TextWord, ...]
    #: More reliable than the boxes of its words: in Korean and Japanese, tesseract's positions within a line are
    #: random.
    box: Box

    @property
    def confidence(self) -> float:
        """Return the mean of its words, weighted by their lengths."""
        weights = [max(1, len(word.text)) for word in self.words]
        total = sum(weights)
        return sum(word.confidence * weight for word, weight in zip(self.words, weights, strict=True)) / max(1, total)


@dataclass(frozen=True)
class Raster:
    """Pixels row by row, one byte each; 0 is black."""

    width: int
    height: int
    gray: bytes


@dataclass(frozen=True)
class Ink:
    """Where a page differs from its background: a coarse bitmap in squares of `cell` pixels.

    A row of squares is one integer, with its leftmost square as the highest of `across` bits. Scanning a page thus
    takes thousands of steps instead of millions.
    """

    across: int
    cell: int
    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PageFacts:
    """Properties of a page that are measured before any text is read."""

    #: The brightness of most of the page.
    background: int
    #: The difference between the background and what differs most from it; 0: the page is uniform.
    contrast: int
    #: The share of the page that is specks, in areas without anything else.
    noise: float
    #: How much the background varies across the page.
    shade: int
    ink: Ink
