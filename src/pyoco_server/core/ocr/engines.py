"""Which engine reads, and what to say where there is none."""

from __future__ import annotations

from typing import Final

__all__ = ["NO_ENGINE", "choose"]

_TESSERACT: Final = "the tesseract command (apt-get install tesseract-ocr)"
_RAPIDOCR: Final = "the packages of pip install 'pyoco-server[ocr]'"

#: By what was asked for. Of use to an operator, and the owner of a run may read it.
NO_ENGINE: Final = {
    "auto": f"this worker has no OCR engine: it needs {_TESSERACT} or {_RAPIDOCR}",
    "tesseract": f"this worker was told to read with tesseract and does not have {_TESSERACT}; "
    f"PYOCO_OCR_ENGINE=rapidocr needs {_RAPIDOCR} instead",
    "rapidocr": f"this worker was told to read with rapidocr and does not have {_RAPIDOCR}; "
    f"PYOCO_OCR_ENGINE=tesseract needs {_TESSERACT} instead",
}


def choose(asked: str, *, has_tesseract: bool, has_rapidocr: bool) -> str | None:
    """The engine that `PYOCO_OCR_ENGINE` means here; None: there is none, and `NO_ENGINE` says what is missing."""
    there = {"tesseract": has_tesseract, "rapidocr": has_rapidocr}
    if asked == "auto":
        return next((name for name, is_there in there.items() if is_there), None)
    return asked if there[asked] else None
