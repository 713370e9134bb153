"""Detect which OCR engines are installed, without loading them."""

from __future__ import annotations

import importlib.util
import shutil

from pyoco_server.core.ocr.engines import choose

__all__ = ["engine_here", "has_rapidocr", "has_tesseract"]


def has_tesseract() -> bool:
    return shutil.which("tesseract") is not None


def has_rapidocr() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("rapidocr", "onnxruntime"))


def engine_here(asked: str) -> str | None:
    """Return the engine that `PYOCO_OCR_ENGINE` selects on this machine. None: no engine is available."""
    return choose(asked, has_tesseract=has_tesseract(), has_rapidocr=has_rapidocr())
