"""The choice of an OCR engine, and the error messages if there is none."""

from __future__ import annotations

from typing import Final

__all__ = ["NO_ENGINE", "choose"]

_TESSERACT: Final = "the tesseract command (apt-get install tesseract-ocr)"
_RAPIDOCR: Final = "the packages of pip install 'pyoco-server[ocr]'"

#: By the value of the setting. Written for operators, but the owner of a run may read it too.
NO_ENGINE: Final = {
    "auto": f"this worker has no OCR engine: it needs {_TESSERACT} or {_RAPIDOCR}",
    "tesseract": f"this worker is set to use tesseract, and lacks {_TESSERACT}; "
    f"PYOCO_OCR_ENGINE=rapidocr needs {_RAPIDOCR} instead",
    "rapidocr": f"this worker is set to use rapidocr, and lacks {_RAPIDOCR}; "
    f"PYOCO_OCR_ENGINE=tesseract needs {_TESSERACT} instead",
}


def choose(requested: str, *, has_tesseract: bool, has_rapidocr: bool) -> str | None:
    """Return the engine that `PYOCO_OCR_ENGINE` selects here. None: it is not installed, and `NO_ENGINE` names what is
    missing."""
    installed = {"tesseract": has_tesseract, "rapidocr": has_rapidocr}
    if requested == "auto":
        return next((name for name, is_there in installed.items() if is_there), None)
    return requested if installed[requested] else None
