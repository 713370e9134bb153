"""The `ocr` pack: reads the tenant's images, and reports what it could not read (contract 14.5)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.ocr.documents import DOCX_TYPE, MARKDOWN_TYPE, PageText, docx, markdown
from pyoco_server.core.ocr.marking import blocks_of, mean_confidence, readings_to_verify
from pyoco_server.core.ocr.page import TextLine
from pyoco_server.core.ocr.profiles import OcrProfile
from pyoco_server.core.packs.ocr import PAGES_MAX, PROFILES, languages_of
from pyoco_server.core.priced.envelope import Artifact, PackResult
from pyoco_server.executors.packs.ocr_page import PageRead, PageReader
from pyoco_server.executors.packs.ocr_profiles import read_profiles
from pyoco_server.executors.packs.port import Context, Execute, PackError, PackUnavailable, stopped_by_budget
from pyoco_server.ports.ocr.port import (
    Book,
    Engine,
    EngineAbsent,
    EngineFailed,
    ImageRefused,
    Images,
    LanguageMissing,
    OutOfTime,
)

__all__ = ["executor"]

#: Reserved for writing the result: a tenth of the timebox, at most this much.
_RESERVE_SECONDS_MAX: Final = 3.0
_RESERVE_SHARE: Final = 0.1
#: Maximum number of such notes; the text itself marks all doubtful readings.
_VERIFY_MAX: Final = 1_000


def executor(config: PackConfig, images: Images, find_engine: Callable[[], Engine | str]) -> Execute:
    """Reads with the engine that `find_engine` returns at the first run; a text says why there is no engine. Raises
    SettingError if the profiles file is invalid."""
    profiles = read_profiles(config.ocr_profiles_file)
    found: list[Engine] = []

    def engine() -> Engine:
        if not found:
            with _pack_errors("the OCR engine"):
                answer = find_engine()
            if isinstance(answer, str):
                raise PackUnavailable("NO_OCR_ENGINE", answer)
            found.append(answer)
        return found[0]

    def execute(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
        return _Run(
            config=config,
            images=images,
            engine=engine(),
            profile=profiles[inputs.get("ocr_profile", PROFILES[0])],
            inputs=inputs,
            ctx=ctx,
            reserve_seconds=min(_RESERVE_SECONDS_MAX, ctx.seconds_left * _RESERVE_SHARE),
            languages=languages_of(inputs),
        ).result()

    return execute


@contextlib.contextmanager
def _pack_errors(which: str) -> Iterator[None]:
    """Translate errors of images and engines into errors of the pack. The only place that does; details contain neither
    keys nor file contents."""
    try:
        yield
    except ImageRefused as error:
        raise PackError(error.code, f"{which} {error.what}") from error
    except LanguageMissing as error:
        raise PackUnavailable("LANGUAGE_MISSING", str(error)) from error
    except EngineAbsent as error:
        raise PackUnavailable("NO_OCR_ENGINE", str(error)) from error
    except EngineFailed as error:
        raise PackError("OCR_ENGINE_FAILED", f"{which}: {error}") from error
    except OSError as error:
        raise PackError("INPUT_MISSING", f"{which} cannot be opened: {error.strerror}") from error


@dataclass
class _Run:
    """One run. Pages are read one after the other, in the order of the images."""

    config: PackConfig
    images: Images
    engine: Engine
    profile: OcrProfile
    inputs: Mapping[str, Any]
    ctx: Context
    #: Time at the end of the timebox that is reserved for writing the result.
    reserve_seconds: float
    languages: tuple[str, ...]
    texts: list[PageText] = field(default_factory=list)
    reads: list[PageRead] = field(default_factory=list)
    #: Number of unread pages by reason.
    skipped: dict[str, int] = field(default_factory=dict)
    #: Number of pages the reservation pays for (SAFE-2).
    pages_covered: int = 0

    def result(self) -> PackResult:
        """Execute the run. All images are opened before any is read: a bad one ends the run early, at the minimum
        price."""
        with _pack_errors("the OCR engine"):
            self.engine.check(self.languages)
        keys = [image["key"] for image in self.inputs["images"]]
        with contextlib.ExitStack() as opened:
            books = [opened.enter_context(self._open(key, index, len(keys))) for index, key in enumerate(keys)]
            pages = min(sum(book.pages for book in books), self._pages_max)
            self.pages_covered = self.config.prices.ocr.covered(self.ctx.reserved_usd_micros, pages)
            for index, (key, book) in enumerate(zip(keys, books, strict=True)):
                self._read_book(key, book, f"image {index + 1} of {len(keys)}")
        if not self.reads and "TIMEBOX" in self.skipped:
            raise PackError("TIMEBOX", "the timebox was over before a page was read")
        return self._written()

    @contextlib.contextmanager
    def _open(self, key: str, index: int, count: int) -> Iterator[Book]:
        which = f"image {index + 1} of {count}"
        path = self.ctx.files.get(key)
        if path is None:
            raise PackError("INPUT_MISSING", f"{which} is not there; upload it, and name the key that the upload gave")
        with _pack_errors(which), self.images.open(path) as book:
            yield book

    def _read_book(self, key: str, book: Book, which: str) -> None:
        reader = PageReader(self.images, self.engine, self.profile, self.languages, self._seconds_left)
        for index in range(book.pages):
            reason = self._reason_to_skip()
            if reason is None:
                with _pack_errors(which):
                    try:
                        read = reader.read(book.page(index))
                    except OutOfTime:
                        reason = "TIMEBOX"
            if reason is not None:
                self.skipped[reason] = self.skipped.get(reason, 0) + 1
                continue
            self.reads.append(read)
            self.texts.append(PageText(key, index + 1, blocks_of(read.lines, self.profile)))

    def _reason_to_skip(self) -> str | None:
        if len(self.reads) + self.skipped.get("BUDGET", 0) >= self._pages_max:
            return "MAX_PAGES"
        if len(self.reads) >= self.pages_covered and "TIMEBOX" not in self.skipped:
            return "BUDGET"
        # After the first page for which there was no time, all later ones are skipped: a page read after a gap would
        # look like the next one.
        return "TIMEBOX" if "TIMEBOX" in self.skipped or self._seconds_left() <= 0 else None

    @property
    def _pages_max(self) -> int:
        return int(self.inputs.get("max_pages", PAGES_MAX))

    def _seconds_left(self) -> float:
        if self.ctx.cancelled.is_set():
            raise PackError("CANCELLED", "the run was cancelled")
        return self.ctx.seconds_left - self.reserve_seconds

    def _written(self) -> PackResult:
        lines = [line for read in self.reads for line in read.lines]
        return PackResult(
            data={
                "texts": [
                    {
                        "source": text.source,
                        "page": text.page,
                        "blocks": [{"text": block.text, "confidence": block.confidence} for block in text.blocks],
                    }
                    for text in self.texts
                ],
                "notes": self._notes(lines),
                **stopped_by_budget(len(self.reads), len(self.reads) + self.skipped.get("BUDGET", 0)),
            },
            actual_cost_usd_micros=self.config.prices.ocr.of(len(self.reads)),
            artifacts=self._artifacts(),
            reliability_score=mean_confidence(lines),
            meta={"ocr": self._meta()},
        )

    def _notes(self, lines: Sequence[TextLine]) -> list[dict[str, str]]:
        doubtful = list(dict.fromkeys(readings_to_verify(lines, self.profile)))
        notes = [{"type": "VERIFY_SPELLING", "value": text} for text in doubtful[:_VERIFY_MAX]]
        why = {
            "MAX_PAGES": "max_pages was reached",
            "TIMEBOX": "the timebox was nearly over",
            "BUDGET": "the reservation does not cover more pages",
        }
        for reason, count in self.skipped.items():
            pages = "1 page was" if count == 1 else f"{count} pages were"
            notes.append({"type": "PAGES_SKIPPED", "value": f"{pages} not read: {why[reason]}"})
        return notes

    def _artifacts(self) -> list[Artifact]:
        made = []
        if self.ctx.artifacts.get("include_markdown"):
            made.append(Artifact(name="ocr.md", content_type=MARKDOWN_TYPE, data=markdown(self.texts)))
        if self.ctx.artifacts.get("include_docx"):
            made.append(Artifact(name="ocr.docx", content_type=DOCX_TYPE, data=docx(self.texts)))
        return made

    def _meta(self) -> dict[str, Any]:
        """How the pages were read: overall and per page (PRICED-148)."""
        modes = list(dict.fromkeys(read.mode for read in self.reads if read.mode is not None))
        return {
            "engine": self.engine.name,
            "engine_version": self.engine.version,
            "profile": self.profile.name,
            "language": "+".join(self.languages),
            "mode": modes[0] if len(modes) == 1 else "mixed" if modes else None,
            "preprocessing": list(dict.fromkeys(step for read in self.reads for step in read.preprocessing)),
            "passes": list(dict.fromkeys(name for read in self.reads for name in read.passes)),
            "pages_read": len(self.reads),
            "pages_skipped": sum(self.skipped.values()),
            "pages": [
                {"source": text.source, "page": text.page} | read.meta()
                for text, read in zip(self.texts, self.reads, strict=True)
            ],
        }
