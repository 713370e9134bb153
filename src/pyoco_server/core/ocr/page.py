"""A page as it is seen, and what was read on it. Places are pixels of the page, from its upper left corner."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Box", "Facts", "Ink", "Line", "Raster", "Word", "bounds"]


@dataclass(frozen=True)
class Box:
    """`right` and `bottom` are the first pixels outside."""

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
        """How wide the part is that they share when one is moved above the other."""
        return max(0, min(self.right, other.right) - max(self.left, other.left))

    def beside(self, other: Box) -> int:
        """How high the part is that they share when one is moved beside the other."""
        return max(0, min(self.bottom, other.bottom) - max(self.top, other.top))

    def is_on_row_of(self, other: Box) -> bool:
        """At least half of the lower of the two stands beside the other."""
        return 2 * self.beside(other) >= min(self.height, other.height) > 0

    def within(self, scale: float, left: int, top: int) -> Box:
        """The same place, seen on the page: this one is on a part of it that begins at `left` and `top`, enlarged."""
        numbers = (
            self.left / scale + left,
            self.top / scale + top,
            self.right / scale + left,
            self.bottom / scale + top,
        )
        return Box(*(round(number) for number in numbers))


def bounds(boxes: Iterable[Box]) -> Box:
    """The smallest box around all of them. Raises ValueError when there are none."""
    boxes = list(boxes)
    return Box(
        min(box.left for box in boxes),
        min(box.top for box in boxes),
        max(box.right for box in boxes),
        max(box.bottom for box in boxes),
    )


@dataclass(frozen=True)
class Word:
    """A piece of text between spaces; of scripts without spaces, whatever the engine took for one piece."""

    #: Empty: something stands there, and nobody can tell what.
    text: str
    #: 0 to 1, as the engine sees it.
    confidence: float
    box: Box


@dataclass(frozen=True)
class Line:
    words: tuple[Word, ...]
    #: More trustworthy than those of its words: of Korean and Japanese, tesseract places words inside a line at random.
    box: Box

    @property
    def confidence(self) -> float:
        """The mean of its words, each counted by its length."""
        weights = [max(1, len(word.text)) for word in self.words]
        total = sum(weights)
        return sum(word.confidence * weight for word, weight in zip(self.words, weights, strict=True)) / max(1, total)


@dataclass(frozen=True)
class Raster:
    """Pixels, a byte each, 0 being black; row by row."""

    width: int
    height: int
    gray: bytes


@dataclass(frozen=True)
class Ink:
    """Where a page is not as its background is: a coarse picture of it, in squares of `cell` pixels.

    A row of squares is one number, its leftmost square the highest of `across` bits. So a page is seen through in
    thousands of steps and not in millions.
    """

    across: int
    cell: int
    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a look at a page tells before anything is read."""

    #: The brightness that most of it has.
    background: int
    #: Between that and what differs most from it; 0: nothing does.
    contrast: int
    #: Which part of it is specks, where nothing else stands.
    noise: float
    #: How much the background varies over the page.
    shade: int
    ink: Ink
