"""The rapidocr engine with the models in its wheel: English, Japanese and Chinese. It never downloads a model."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from pyoco_server.core.ocr.page import Box, Raster, TextLine, TextWord, bounds
from pyoco_server.ports.ocr.port import EngineAbsent, EngineFailed, LanguageMissing, OutOfTime

__all__ = ["RapidOcr"]

#: Languages of its built-in recognition model. For others it would download a model at first use.
_LANGUAGES: Final = frozenset({"eng", "jpn", "chi", "zho"})
_MODELS: Final = {"Det": "PP-OCRv6_det_small.onnx", "Rec": "PP-OCRv6_rec_small.onnx"}
#: Measured: a tenth of the time and a third of the memory of its defaults, with no loss of quality. The score is 0
#: because anything below it would be dropped silently.
_SETTINGS: Final[dict[str, Any]] = {
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,
    "Global.use_cls": False,
    "Global.text_score": 0.0,
    "Global.log_level": "critical",
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
}
#: A reading cannot be interrupted, so none begins with less time than this.
_LEAST_SECONDS: Final = 1.0


class RapidOcr:
    """Loads its models at the first reading: about 300 MB.

    A reading cannot be interrupted; it takes a second or two.
    """

    name = "rapidocr"
    languages = tuple(sorted(_LANGUAGES))

    def __init__(self) -> None:
        """Check that the models exist. Raises EngineFailed."""
        self.version = importlib.metadata.version("rapidocr")
        self._models = {part: _folder() / name for part, name in _MODELS.items()}
        if not all(path.is_file() for path in self._models.values()):
            raise EngineAbsent(
                f"this rapidocr ({self.version}) does not bring its models; pip install 'pyoco-server[ocr]'"
            )
        self._read: Any = None

    def check(self, languages: Sequence[str]) -> None:
        missing = [code for code in languages if code not in _LANGUAGES]
        if missing:
            packages = " ".join(f"tesseract-ocr-{code}" for code in missing)
            raise LanguageMissing(
                f"rapidocr does not read {', '.join(missing)}; tesseract does "
                f"(apt-get install tesseract-ocr {packages})"
            )

    def read(self, raster: Raster, mode: str, languages: Sequence[str], seconds: float) -> list[TextLine]:
        """Read one page.

        The engine finds lines itself: `mode` only decides whether pieces in one row are joined into a line.
        """
        if seconds < _LEAST_SECONDS:
            raise OutOfTime("no time is left for a reading")
        began = time.monotonic()
        pieces = self._pieces(raster)
        if time.monotonic() - began > seconds:
            raise OutOfTime("rapidocr did not end in time")
        return pieces if mode == "sparse" else _rows(pieces)

    def _pieces(self, raster: Raster) -> list[TextLine]:
        import numpy as np  # noqa: PLC0415  (comes with the extra)

        gray = np.frombuffer(raster.gray, np.uint8).reshape(raster.height, raster.width)
        try:
            answer = self._engine()(np.repeat(gray[:, :, None], 3, axis=2), return_word_box=True)
        except Exception as error:  # the runtime may raise anything; report only its type
            raise EngineFailed(f"rapidocr ended with {type(error).__name__}") from error
        if answer.txts is None or answer.boxes is None:
            return []
        words_by_line = answer.word_results or [()] * len(answer.txts)
        lines = [
            _line(_word(text, score, corners), [_word(*word) for word in words])
            for text, score, corners, words in zip(
                answer.txts, answer.scores, answer.boxes.tolist(), words_by_line, strict=True
            )
        ]
        return [line for line in lines if line.words]

    def _engine(self) -> Any:
        if self._read is None:
            from rapidocr import RapidOCR  # noqa: PLC0415  (takes seconds, so only if it is used)

            named = {f"{part}.model_path": str(path) for part, path in self._models.items()}
            self._read = RapidOCR(params=_SETTINGS | named)
        return self._read


def _folder() -> Path:
    found = importlib.util.find_spec("rapidocr")
    if found is None or found.origin is None:
        raise EngineAbsent("rapidocr is not installed; pip install 'pyoco-server[ocr]'")
    return Path(found.origin).parent / "models"


def _box(corners: Iterable[Sequence[float]]) -> Box:
    points = list(corners)
    across, down = [point[0] for point in points], [point[1] for point in points]
    return Box(round(min(across)), round(min(down)), round(max(across)), round(max(down)))


def _word(text: str, score: float, corners: Iterable[Sequence[float]]) -> TextWord:
    return TextWord(text.strip(), min(1.0, max(0.0, float(score))), _box(corners))


def _line(complete: TextWord, words: Sequence[TextWord]) -> TextLine:
    """Build a line from its words, each with its own confidence, if they cover the complete text; else from one
    piece."""
    words = [word for word in words if word.text]
    if "".join("".join(word.text for word in words).split()) != "".join(complete.text.split()):
        words = [complete]
    return TextLine(tuple(word for word in words if word.text), complete.box)


def _rows(pieces: Sequence[TextLine]) -> list[TextLine]:
    """Join pieces that stand side by side into one line."""
    rows: list[list[TextLine]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.box.middle, piece.box.left)):
        row = next((row for row in rows if all(piece.box.is_on_row_of(other.box) for other in row)), None)
        if row is None:
            rows.append([piece])
        else:
            row.append(piece)
    return [_joined(sorted(row, key=lambda piece: piece.box.left)) for row in rows]


def _joined(row: Sequence[TextLine]) -> TextLine:
    return TextLine(tuple(word for piece in row for word in piece.words), bounds(piece.box for piece in row))
