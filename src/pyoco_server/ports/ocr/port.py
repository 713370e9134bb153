"""Images as pages, and engines that read them. Pixels are plain bytes here, so engines need no imaging library."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from pyoco_server.core.ocr.page import Box, PageFacts, Raster, TextLine

__all__ = ["Book", "Engine", "EngineAbsent", "EngineFailed", "ImageRefused", "Images", "LanguageMissing", "OutOfTime"]


class ImageRefused(Exception):
    """The file is not a readable image. `what` completes "image 2 of 3 …", and quotes nothing from the file."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(code)
        self.code, self.what = code, what


class LanguageMissing(Exception):
    """The engine does not support a language. The text names the languages and the remedy."""


class EngineFailed(Exception):
    """The engine ended without a result. The text says how, and quotes nothing from the page."""


class EngineAbsent(EngineFailed):
    """No engine is installed, or it cannot be started."""


class OutOfTime(EngineFailed):
    """The engine was stopped because it exceeded its time limit."""


class Book(Protocol):
    """An open image file with one or more pages."""

    @property
    def pages(self) -> int: ...

    def page(self, index: int) -> Raster:
        """Return a page, upright, and reduced to a size that engines can use.

        Only one page is in memory at a time. Raises ImageRefused.
        """


class Images(Protocol):
    """Operations on pixels. Stateless."""

    def open(self, path: Path) -> AbstractContextManager[Book]:
        """Open a file. Reads only its header, and decodes nothing. Raises ImageRefused."""

    def look(self, raster: Raster) -> PageFacts: ...

    def prepare(self, raster: Raster, steps: Sequence[str], scale: float) -> Raster:
        """Apply these preprocessing steps to the page; `scale` is for `enlarge`."""

    def part(self, raster: Raster, boxes: Sequence[Box], scale: float) -> tuple[Raster, int, int]:
        """Return the content of the boxes on white, at this scale, and its left and top position on the page."""


class Engine(Protocol):
    """An OCR engine. Reads one page at a time."""

    name: str
    version: str

    def check(self, languages: Sequence[str]) -> None:
        """Raise LanguageMissing for an unsupported language, or EngineFailed if the engine cannot work at all."""

    def read(self, raster: Raster, mode: str, languages: Sequence[str], seconds: float) -> list[TextLine]:
        """Return the lines in reading order, including uncertain text.

        `mode` is one of `profiles.MODES`, except `columns`. Raises EngineFailed, and OutOfTime after `seconds`.
        """
