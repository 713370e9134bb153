"""Images as pages, and engines that read them. Pixels are plain bytes here, so no engine has to know a library."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from pyoco_server.core.ocr.page import Box, Facts, Line, Raster

__all__ = ["Book", "Engine", "EngineAbsent", "EngineFailed", "ImageRefused", "Images", "LanguageMissing", "OutOfTime"]


class ImageRefused(Exception):
    """A file is not an image that can be read. `what` completes "image 2 of 3 …", and quotes nothing of the file."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(code)
        self.code, self.what = code, what


class LanguageMissing(Exception):
    """The engine cannot read a language. The text names the languages and says what to do."""


class EngineFailed(Exception):
    """The engine ended without an answer. The text says how, and quotes nothing that it read."""


class EngineAbsent(EngineFailed):
    """There is no engine, or it cannot be started."""


class OutOfTime(EngineFailed):
    """The engine was stopped because its time was over."""


class Book(Protocol):
    """An image that is open: one page, or several."""

    @property
    def pages(self) -> int: ...

    def page(self, index: int) -> Raster:
        """Upright, and shrunk to what an engine can use. One page is in memory at a time. Raises ImageRefused."""


class Images(Protocol):
    """What is done with pixels. It holds nothing between calls."""

    def open(self, path: Path) -> AbstractContextManager[Book]:
        """Looks at the head of the file, and decodes nothing. Raises ImageRefused."""

    def look(self, raster: Raster) -> Facts: ...

    def prepare(self, raster: Raster, steps: Sequence[str], scale: float) -> Raster:
        """The page after these steps of preprocessing; `scale` is for `enlarge`."""

    def part(self, raster: Raster, boxes: Sequence[Box], scale: float) -> tuple[Raster, int, int]:
        """What lies within the boxes, on white, at this scale; and where on the page it begins, left and top."""


class Engine(Protocol):
    """Reads one page at a time."""

    name: str
    version: str

    def check(self, languages: Sequence[str]) -> None:
        """Raises LanguageMissing, or EngineFailed where it cannot work at all."""

    def read(self, raster: Raster, mode: str, languages: Sequence[str], seconds: float) -> list[Line]:
        """The lines in the order of reading, with all that was seen, however unsure. `mode` is one of
        `profiles.MODES`, but not `columns`. Raises EngineFailed, and OutOfTime after `seconds`."""
