"""Reading pages: seconds for each, and how much of what was drawn is in what was read."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from bench.report import heading, median, table
from bench.stack import Stack
from pyoco_server.config.packs import PackConfig
from pyoco_server.executors.packs.port import Context, Execute, PackError
from pyoco_server.wiring import packs as wiring_packs

_FONTS = Path("/usr/share/fonts")
#: Of each language: the font, what is asked for, and lines that are repeated to fill pages.
_SETS = {
    "English": (
        "truetype/liberation/LiberationSans-Regular.ttf",
        "eng",
        (
            "The quick brown fox jumps over the lazy dog, and goes on to the next field.",
            "Invoice 2024-117 is due on 15 March, at 1,250.00 EUR, without further notice.",
            "Leaving text out is the worst error of all: what is missing, nobody can see.",
            "Sphinx of black quartz, judge my vow; pack my box with five dozen liquor jugs.",
        ),
    ),
    "Korean": (
        "truetype/nanum/NanumGothic.ttf",
        "kor+eng",
        (
            "안녕하세요. 이 문서는 글자 인식을 시험하기 위하여 만든 문서입니다.",
            "빠른 갈색 여우가 게으른 개를 뛰어넘고 다음 들판으로 달려갑니다.",
            "계약 번호 2024-117은 3월 15일에 만료되며 금액은 1,250원입니다.",
            "모든 글자를 빠짐없이 읽어야 하며 읽지 못한 곳은 표시하여야 합니다.",
        ),
    ),
    "Japanese": (
        "opentype/ipafont-gothic/ipagp.ttf",
        "jpn",
        (
            "これは文字認識を試験するために作成した文書です。",
            "請求書番号2024-117の支払期日は3月15日で、金額は1,250円です。",
            "東京都千代田区で来週の月曜日に会議を開催します。",
            "文字を落とすことは最も悪い誤りであり、読めない場所には印を付けます。",
        ),
    ),
}
#: The size of letters in pixels at 200 dots per inch: 11 points, and 6 points.
_SIZES = (30, 16)
_ROUNDS = 3


def _page(font: str, size: int, lines: tuple[str, ...]) -> tuple[Image.Image, str]:
    """A4 at 200 dots per inch, with 24 lines."""
    page, drawn = Image.new("L", (1654, 2339), 255), []
    pen, letters = ImageDraw.Draw(page), ImageFont.truetype(_FONTS / font, size)
    for index in range(24):
        drawn.append(lines[index % len(lines)])
        pen.text((150, 150 + index * round(size * 1.8)), drawn[-1], font=letters, fill=0)
    return page, "".join(drawn)


def _read(execute: Execute, path: Path, language: str) -> Any:
    return execute(
        {"images": [{"kind": "s3", "bucket": "b", "key": "page"}], "language": language},
        Context(
            run_id="r",
            tenant_id="t",
            trace_id=None,
            deadline=time.monotonic() + 90,
            min_reliability_score=0.8,
            artifacts={},
            files={"page": path},
        ),
    )


def _similarity(data: Any, drawn: str) -> float:
    read = "".join(block["text"] for text in data["texts"] for block in text["blocks"])
    one, other = ("".join(text.split()) for text in (read, drawn))
    return 1 - _distance(one, other) / max(len(one), len(other))


def _distance(one: str, other: str) -> int:
    """How many characters have to be changed, added or taken away. O(n m)."""
    row = list(range(len(other) + 1))
    for index, letter in enumerate(one, 1):
        last, row[0] = row[0], index
        for at, wanted in enumerate(other, 1):
            last, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, last + (letter != wanted))
    return row[-1]


def _measure(execute: Execute, path: Path, language: str, drawn: str) -> tuple[str, str, str]:
    seconds = []
    try:
        result = _read(execute, path, language)  # the first one loads models
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            result = _read(execute, path, language)
            seconds.append(time.perf_counter() - began)
    except PackError as error:
        return error.code.lower().replace("_", " "), "", ""
    score = f"{result.reliability_score:.2f}"
    return f"{median(seconds):.2f} s", f"{_similarity(result.data, drawn):.3f}", score


def main(_: Stack) -> None:
    heading("OCR: one A4 page of 24 lines, drawn; similarity without spaces, 1 is all of it")
    rows = [("", "engine", "a page", "similarity", "its own score")]
    with tempfile.TemporaryDirectory() as folder:
        for engine in ("tesseract", "rapidocr"):
            execute = wiring_packs.executors({"ocr": ""}, PackConfig(ocr_engine=engine))["ocr"]
            for name, (font, language, lines) in _SETS.items():
                for size in _SIZES:
                    page, drawn = _page(font, size, lines)
                    path = Path(folder) / "page.png"
                    page.save(path)
                    rows.append((f"{name}, letters of {size} px", engine, *_measure(execute, path, language, drawn)))
    table(rows)
    peak = {who: resource.getrusage(what).ru_maxrss >> 10 for who, what in _WHO.items()}
    print(f"memory at most: {peak['here']} MiB here with rapidocr loaded, {peak['tesseract']} MiB in tesseract")


_WHO = {"here": resource.RUSAGE_SELF, "tesseract": resource.RUSAGE_CHILDREN}
