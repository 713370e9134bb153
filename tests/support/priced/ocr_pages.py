"""Pages to read: drawn here, so that it is known what stands on them."""

from __future__ import annotations

import difflib
import os
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from PIL import Image, ImageDraw, ImageFont

from pyoco_server.executors.packs.port import Context

__all__ = ["TEXTS", "columns", "context", "draw", "need_tesseract", "noisy", "save", "similarity", "text_of"]

_FONTS: Final = {
    "eng": "truetype/liberation/LiberationSans-Regular.ttf",
    "kor": "truetype/nanum/NanumGothic.ttf",
    "jpn": "opentype/ipafont-gothic/ipagp.ttf",
}
TEXTS: Final = {
    "eng": (
        "The quick brown fox jumps over the lazy dog.",
        "Invoice 2024-117 is due on 15 March, at 1,250.00 EUR.",
        "Leaving text out is the worst error of all.",
        "What cannot be read is marked where it stands.",
    ),
    "kor": (
        "안녕하세요. 이 문서는 시험용 문서입니다.",
        "빠른 갈색 여우가 게으른 개를 뛰어넘습니다.",
        "계약 번호 2024-117은 3월 15일에 만료됩니다.",
        "모든 글자를 빠짐없이 읽어야 합니다.",
    ),
    "jpn": (
        "これは試験用の文書です。",
        "請求書番号2024-117の支払期日は3月15日です。",
        "東京都千代田区で会議を開催します。",
        "文字を落とすことは最も悪い誤りです。",
    ),
}
_FOLDER: Final = Path("/usr/share/fonts")


def need_tesseract() -> None:
    """Missing: a failure in CI, a skipped test on a laptop."""
    if shutil.which("tesseract") is None or not all((_FOLDER / name).exists() for name in _FONTS.values()):
        why = "there is no tesseract, or no font to draw its pages in: run `make programs`"
        if os.environ.get("CI"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)


def font(language: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_FOLDER / _FONTS[language], size)


def draw(
    language: str,
    lines: Sequence[str | tuple[int, str]] | None = None,
    *,
    size: int = 32,
    colors: tuple[int, int] = (0, 255),
) -> Image.Image:
    """A page with these lines below each other, each perhaps of a size of its own."""
    sized = [line if isinstance(line, tuple) else (size, line) for line in lines or TEXTS[language]]
    fonts = [font(language, each) for each, _ in sized]
    width = max(int(letters.getlength(line)) for letters, (_, line) in zip(fonts, sized, strict=True))
    page = Image.new("L", (width + 4 * size, 2 * size + sum(int(each * 1.7) for each, _ in sized)), colors[1])
    pen, top = ImageDraw.Draw(page), size
    for letters, (each, line) in zip(fonts, sized, strict=True):
        pen.text((2 * size, top), line, font=letters, fill=colors[0])
        top += int(each * 1.7)
    return page


def columns(language: str, left: Sequence[str], right: Sequence[str], *, size: int = 28) -> Image.Image:
    """Two columns with a gutter between them."""
    sides = [draw(language, lines, size=size) for lines in (left, right)]
    page = Image.new("L", (sum(side.width for side in sides), max(side.height for side in sides)), 255)
    page.paste(sides[0], (0, 0))
    page.paste(sides[1], (sides[0].width, 0))
    return page


def noisy(page: Image.Image, share: float, seed: int = 7) -> Image.Image:
    """With that share of its pixels black or white at random."""
    chance = random.Random(seed)
    noise = page.copy()
    for _ in range(round(page.width * page.height * share)):
        noise.putpixel((chance.randrange(page.width), chance.randrange(page.height)), chance.choice((0, 255)))
    return noise


def save(page: Image.Image, path: Path, **options: Any) -> Path:
    page.save(path, **options)
    return path


def similarity(read: str, drawn: str) -> float:
    """Of the characters, without spaces: 1 is all of them."""
    one, other = ("".join(text.split()) for text in (read, drawn))
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def text_of(data: Any) -> str:
    """All that was read, one block after the other."""
    return "\n".join(block["text"] for text in data["texts"] for block in text["blocks"])


def context(
    files: dict[str, Path],
    *,
    seconds: float = 200.0,
    artifacts: dict[str, Any] | None = None,
    reserved_usd_micros: int = 1_000_000,
) -> Context:
    return Context(
        run_id="5b0c6f7e-5a3f-4a3c-8f0e-1c3f6c1f2a10",
        tenant_id="acme",
        trace_id=None,
        deadline=time.monotonic() + seconds,
        min_reliability_score=0.8,
        artifacts=artifacts or {},
        reserved_usd_micros=reserved_usd_micros,
        files=files,
    )
