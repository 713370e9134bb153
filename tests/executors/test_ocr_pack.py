"""The ocr pack as a run sees it: pages in, text out, and nothing left out in silence."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFilter

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.ocr.engines import NO_ENGINE
from pyoco_server.core.ocr.page import Box, Raster, TextLine, TextWord
from pyoco_server.core.packs.ocr import OCR
from pyoco_server.core.packs.spec import Here
from pyoco_server.core.priced.envelope import Cover, PackResult, seal
from pyoco_server.errors import SettingError
from pyoco_server.executors.packs import ocr
from pyoco_server.executors.packs.port import Execute, PackError
from pyoco_server.ports.ocr.pages import PillowImages
from pyoco_server.ports.ocr.port import EngineFailed, LanguageMissing, OutOfTime
from pyoco_server.wiring import packs as wiring_packs
from support.priced.ocr_pages import TEXTS, columns, context, draw, need_tesseract, noisy, save, similarity, text_of

CONFIG = PackConfig()
BUCKET = "dpp-inputs"


def asked(*keys: str, **more: Any) -> dict[str, Any]:
    inputs = {"images": [{"kind": "s3", "bucket": BUCKET, "key": key} for key in keys], **more}
    assert OCR.check(inputs, Here(tenant_id="acme", input_bucket=BUCKET)) == ()
    return inputs


@pytest.fixture(scope="session")
def tesseract() -> Execute:
    need_tesseract()
    return wiring_packs.executors({"ocr": ""}, PackConfig(ocr_engine="tesseract"))["ocr"]


@pytest.fixture
def read(tesseract: Execute, tmp_path: Path) -> Callable[..., PackResult]:
    def one(page: Image.Image, artifacts: dict[str, Any] | None = None, **more: Any) -> PackResult:
        files = {"dpp/acme/1/a.png": save(page, tmp_path / "a.png")}
        return tesseract(asked("dpp/acme/1/a.png", **more), context(files, artifacts=artifacts))

    return one


@pytest.mark.parametrize(
    ("language", "asked_for", "size"),
    [("eng", "eng", 32), ("kor", "kor+eng", 32), ("jpn", "jpn", 32), ("eng", "kor+eng", 14)],
)
def test_pages_in_its_languages_are_read(
    read: Callable[..., PackResult], language: str, asked_for: str, size: int
) -> None:
    """PRICED-127, PRICED-148. Without `enlarge`, the last of them is read to two thirds."""
    result = read(draw(language, size=size), language=asked_for)
    assert similarity(text_of(result.data), "".join(TEXTS[language])) >= 0.9
    assert result.actual_cost_usd_micros == 10_000
    assert result.reliability_score is not None
    assert 0.8 <= result.reliability_score <= 1
    (text,) = result.data["texts"]
    assert (text["source"], text["page"]) == ("dpp/acme/1/a.png", 1)
    told = result.meta["ocr"]
    assert (told["engine"], told["profile"], told["language"], told["mode"]) == ("tesseract", "P1", asked_for, "block")
    assert told["preprocessing"] == (["enlarge"] if size == 14 else [])
    assert told["passes"] == ["body"]
    assert (told["pages_read"], told["pages_skipped"]) == (1, 0)


def test_korean_beside_english_stays_korean(read: Callable[..., PackResult]) -> None:
    """PRICED-149. Asked for both at once, tesseract reads Latin letters here, and is sure of them."""
    lines = [
        "계약 번호 2024-117은 3월 15일에 만료되며 금액은 없습니다.",
        "모든 글자를 빠짐없이 읽지 못한 곳은 표시하여야 합니다.",
        "This line is in English.",
    ]
    text = text_of(read(draw("kor", lines, size=30), language="kor+eng").data)
    assert similarity(text, "".join(lines)) >= 0.95
    assert "금액은" in text


def test_titles_and_fine_print_get_a_look_of_their_own_and_stand_there_once(read: Callable[..., PackResult]) -> None:
    """PRICED-148, PRICED-149"""
    lines = [
        (80, "Annual Report"),
        *((32, line) for line in TEXTS["eng"]),
        (13, "The fine print is what everybody signs."),
    ]
    result = read(draw("eng", lines), language="eng", ocr_profile="P1")
    text = text_of(result.data)
    assert result.meta["ocr"]["passes"] == ["title", "body", "fine_print"]
    assert similarity(text, "".join(line for _, line in lines)) >= 0.95
    assert text.count("Annual") == text.count("print") == 1
    without = read(draw("eng", lines), language="eng", ocr_profile="P2B")
    assert without.meta["ocr"]["passes"] == ["body", "fine_print"], "what the table says"


def test_columns_are_read_one_after_the_other(read: Callable[..., PackResult]) -> None:
    left = ["Alpha bravo charlie delta", "echo foxtrot golf hotel", "india juliett kilo lima", "mike november oscar"]
    right = [
        "One two three four five",
        "six seven eight nine ten",
        "eleven twelve thirteen",
        "fourteen fifteen sixteen",
    ]
    result = read(columns("eng", left, right), language="eng")
    assert result.meta["ocr"]["mode"] == "columns"
    assert similarity(text_of(result.data), "".join(left + right)) >= 0.95


@pytest.mark.parametrize(
    ("page", "step"),
    [
        (lambda: draw("eng", colors=(235, 20)), "invert"),
        (lambda: draw("eng", colors=(190, 240)), "contrast"),
        (lambda: noisy(draw("eng"), 0.02), "denoise"),
    ],
    ids=["bright on dark", "faint", "specks"],
)
def test_what_a_page_needs_is_done_before_it_is_read(
    read: Callable[..., PackResult], page: Callable[[], Image.Image], step: str
) -> None:
    """PRICED-148"""
    result = read(page(), language="eng")
    assert result.meta["ocr"]["preprocessing"] == [step]
    assert similarity(text_of(result.data), "".join(TEXTS["eng"])) >= 0.95


def test_a_page_that_cannot_be_read_is_full_of_marks_and_not_empty(read: Callable[..., PackResult]) -> None:
    """PRICED-149"""
    result = read(draw("eng").filter(ImageFilter.GaussianBlur(5)), language="eng")
    text = text_of(result.data)
    assert text.count("[□]") + text.count("(?)") >= 4
    assert any(note["type"] == "VERIFY_SPELLING" for note in result.data["notes"])
    assert result.reliability_score is not None
    assert result.reliability_score < 0.6


def test_a_line_that_the_engine_passes_over_is_marked_where_it_stands(read: Callable[..., PackResult]) -> None:
    """PRICED-149"""
    page = draw("eng")
    page.paste(page.crop((0, 140, page.width, 190)).filter(ImageFilter.GaussianBlur(8)), (0, 140))
    lines = text_of(read(page, language="eng").data).split("\n")
    assert len(lines) == 4
    assert "[□]" in lines[2] or "(?)" in lines[2]
    assert similarity("".join(lines[:2] + lines[3:]), "".join([*TEXTS["eng"][:2], TEXTS["eng"][3]])) >= 0.95


def test_a_line_in_a_frame_is_read_though_the_engine_passes_over_it(read: Callable[..., PackResult]) -> None:
    """PRICED-149"""
    page = draw("eng")
    ImageDraw.Draw(page).rectangle((10, 10, page.width - 10, 84), outline=0, width=3)
    assert TEXTS["eng"][0] in text_of(read(page, language="eng").data)


def test_files_are_made_when_they_are_asked_for(read: Callable[..., PackResult]) -> None:
    page = draw("eng", ["Only this line."])
    assert not read(page, language="eng").artifacts
    result = read(page, {"include_markdown": True, "include_docx": True}, language="eng")
    made = {artifact.name: artifact for artifact in result.artifacts}
    assert set(made) == {"ocr.md", "ocr.docx"}
    assert "Only this line." in made["ocr.md"].data.decode()
    with zipfile.ZipFile(io.BytesIO(made["ocr.docx"].data)) as file:
        assert "Only this line." in file.read("word/document.xml").decode()
    sealed = seal(
        Cover(
            run_id="r",
            pack_type="ocr",
            trace_id=None,
            profile_version="1",
            prefix="dpp/acme",
            generated_at="2026-02-13T00:00:00Z",
            reserved_usd_micros=250_000,
            charge_usd_micros=10_000,
            minimum_fee_usd_micros=5_000,
            min_reliability_e4=8_000,
        ),
        result,
    )
    assert json.loads(sealed.envelope)["meta"]["ocr"]["mode"] == "line"


# ---- With an engine that does as it is told ----


class Scripted:
    """Reads "word" wherever it looks; `does` is called before each reading."""

    name, version = "scripted", "1"

    def __init__(self, does: Callable[[float], None] | None = None) -> None:
        self.modes: list[str] = []
        self._does = does

    def check(self, languages: Sequence[str]) -> None:
        if "xyz" in languages:
            raise LanguageMissing("there is no xyz here")

    def read(self, raster: Raster, mode: str, languages: Sequence[str], seconds: float) -> list[TextLine]:
        self.modes.append(mode)
        if self._does is not None:
            self._does(seconds)
        box = Box(0, 0, raster.width, raster.height)
        return [TextLine((TextWord("word", 0.9, box),), box)]


def scripted(does: Callable[[float], None] | None = None, config: PackConfig = CONFIG) -> Execute:
    return ocr.executor(config, PillowImages(), lambda: Scripted(does))


def pages(path: Path, count: int, *, blank: bool = False) -> Path:
    page = draw("eng", ["Some words", "on two lines"], size=20)
    if blank:
        page = Image.new("L", page.size, 255)
    page.save(path, "TIFF", save_all=True, append_images=[page] * (count - 1))
    return path


def test_pages_of_a_tiff_are_pages_and_each_is_paid_for(tmp_path: Path) -> None:
    """PRICED-127"""
    files = {"dpp/acme/a": pages(tmp_path / "a", 3), "dpp/acme/b": pages(tmp_path / "b", 2)}
    result = scripted(config=PackConfig(price_ocr_page_usd_micros=7))(
        asked("dpp/acme/a", "dpp/acme/b", "dpp/acme/a", max_pages=7.0), context(files)
    )
    assert [(text["source"][-1], text["page"]) for text in result.data["texts"]] == [
        *(("a", page) for page in (1, 2, 3)),
        *(("b", page) for page in (1, 2)),
        *(("a", page) for page in (1, 2)),
    ]
    assert result.actual_cost_usd_micros == 7 * 7
    assert result.data["notes"] == [{"type": "PAGES_SKIPPED", "value": "1 page was not read: max_pages was reached"}]
    assert result.meta["ocr"]["pages_skipped"] == 1


@pytest.mark.parametrize(
    ("reserved", "more", "read", "of", "notes"),
    [
        (9_900, {}, 0, 5, ["5 pages were not read: the reservation does not cover more pages"]),
        (30_000, {}, 3, 5, ["2 pages were not read: the reservation does not cover more pages"]),
        (49_900, {}, 4, 5, ["1 page was not read: the reservation does not cover more pages"]),
        (
            *(20_000, {"max_pages": 3}, 2, 3),
            [
                "1 page was not read: the reservation does not cover more pages",
                "2 pages were not read: max_pages was reached",
            ],
        ),
    ],
)
def test_it_stops_before_the_first_page_that_the_reservation_does_not_cover(
    tmp_path: Path, reserved: int, more: dict[str, Any], read: int, of: int, notes: list[str]
) -> None:
    """SAFE-2"""
    files = {"dpp/acme/a": pages(tmp_path / "a", 2), "dpp/acme/b": pages(tmp_path / "b", 3)}
    ctx = context(files, reserved_usd_micros=reserved)
    result = scripted()(asked("dpp/acme/a", "dpp/acme/b", **more), ctx)
    assert result.data["stopped"] == {"reason": "BUDGET", "done": read, "of": of}
    assert len(result.data["texts"]) == read
    assert result.data["notes"] == [{"type": "PAGES_SKIPPED", "value": value} for value in notes]
    assert result.actual_cost_usd_micros == 10_000 * read
    enough = scripted()(asked("dpp/acme/a", "dpp/acme/b", **more), context(files, reserved_usd_micros=10_000 * of))
    assert (len(enough.data["texts"]), "stopped" in enough.data) == (of, False)


def test_a_blank_page_is_a_page_without_text_and_is_paid_for(tmp_path: Path) -> None:
    """PRICED-127"""
    files = {"dpp/acme/a": pages(tmp_path / "a", 2, blank=True)}
    result = scripted()(asked("dpp/acme/a"), context(files, artifacts={"include_markdown": True}))
    assert [text["blocks"] for text in result.data["texts"]] == [[], []]
    assert result.actual_cost_usd_micros == 20_000
    assert result.reliability_score is None
    assert result.meta["ocr"]["mode"] is None


def test_the_mode_is_locked_for_all_passes_of_a_page(tmp_path: Path) -> None:
    """PRICED-148"""
    engine = Scripted()
    lines = [(80, "Title"), (30, "body of the page"), (30, "body of the page"), (12, "fine print below all")]
    files = {"dpp/acme/a": save(draw("eng", lines, size=30), tmp_path / "a.png")}
    ocr.executor(CONFIG, PillowImages(), lambda: engine)(asked("dpp/acme/a"), context(files))
    assert len(engine.modes) >= 3
    assert set(engine.modes) == {"block"}


class Forgetful(Scripted):
    """Reads nothing the first `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def read(self, raster: Raster, mode: str, languages: Sequence[str], seconds: float) -> list[TextLine]:
        lines = super().read(raster, mode, languages, seconds)
        return lines if len(self.modes) > self._times else []


@pytest.mark.parametrize(("times", "text"), [(0, "word"), (1, "word"), (9, "[□]\n[□]")])
def test_what_an_engine_passes_over_is_looked_at_once_more_and_then_marked(
    tmp_path: Path, times: int, text: str
) -> None:
    """PRICED-149"""
    engine = Forgetful(times)
    files = {"dpp/acme/a": save(draw("eng", list(TEXTS["eng"][:2])), tmp_path / "a.png")}
    result = ocr.executor(CONFIG, PillowImages(), lambda: engine)(asked("dpp/acme/a"), context(files))
    assert text_of(result.data) == text
    assert len(engine.modes) == 1 + bool(times)


def test_what_is_read_when_time_is_short_is_kept_and_the_rest_is_told(tmp_path: Path) -> None:
    calls = []

    def slow(seconds: float) -> None:
        calls.append(seconds)
        if len(calls) > 1:
            raise OutOfTime("too slow")

    files = {"dpp/acme/a": pages(tmp_path / "a", 4)}
    result = scripted(slow)(asked("dpp/acme/a"), context(files, seconds=100))
    assert len(result.data["texts"]) == 1
    assert result.actual_cost_usd_micros == 10_000
    assert result.data["notes"][-1] == {
        "type": "PAGES_SKIPPED",
        "value": "3 pages were not read: the timebox was nearly over",
    }
    assert len(calls) == 2, "after a page for which there was no time, none is tried"
    assert all(seconds < 97.1 for seconds in calls), "a part of the timebox is kept for writing down"


def test_a_run_that_read_nothing_in_its_time_fails(tmp_path: Path) -> None:
    def never(_: float) -> None:
        raise OutOfTime("too slow")

    files = {"dpp/acme/a": pages(tmp_path / "a", 2)}
    for seconds in (100.0, 0.0):
        with pytest.raises(PackError) as failed:
            scripted(never)(asked("dpp/acme/a"), context(files, seconds=seconds))
        assert failed.value.code == "TIMEBOX"


def test_a_run_that_nobody_waits_for_stops_at_the_next_page(tmp_path: Path) -> None:
    files = {"dpp/acme/a": pages(tmp_path / "a", 40)}
    ctx = context(files)
    count = []

    def cancel(_: float) -> None:
        count.append(1)
        ctx.cancelled.set()

    with pytest.raises(PackError) as failed:
        scripted(cancel)(asked("dpp/acme/a"), ctx)
    assert failed.value.code == "CANCELLED"
    assert len(count) == 1


@pytest.mark.parametrize(
    ("content", "code", "told"),
    [
        (None, "INPUT_MISSING", "image 2 of 2 is not there"),
        (b"", "IMAGE_CORRUPT", "image 2 of 2 is empty"),
        (b"%PDF-1.7", "PDF_NOT_READ", "image 2 of 2 is a PDF"),
        (b"\x89PNG\r\n\x1a\nsecret", "IMAGE_", "image 2 of 2 is"),
        (b"secret words", "IMAGE_UNKNOWN", "image 2 of 2 is not an image"),
    ],
    ids=["missing", "empty", "PDF", "broken", "no image"],
)
def test_a_bad_image_ends_the_run_before_anything_is_read_and_nothing_of_it_is_told(
    tmp_path: Path, content: bytes | None, code: str, told: str
) -> None:
    """PRICED-171"""
    engine = Scripted()
    files = {"dpp/acme/a": pages(tmp_path / "a", 1)}
    if content is not None:
        (tmp_path / "b").write_bytes(content)
        files["dpp/acme/b-private"] = tmp_path / "b"
    with pytest.raises(PackError) as failed:
        ocr.executor(CONFIG, PillowImages(), lambda: engine)(asked("dpp/acme/a", "dpp/acme/b-private"), context(files))
    assert failed.value.code.startswith(code)
    assert failed.value.detail.startswith(told)
    assert "private" not in failed.value.detail
    assert "secret" not in failed.value.detail
    assert len(failed.value.detail) < 270
    assert not engine.modes


def test_a_file_that_went_away_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(PackError) as failed:
        scripted()(asked("dpp/acme/a"), context({"dpp/acme/a": tmp_path / "gone"}))
    assert failed.value.code == "INPUT_MISSING"
    assert str(tmp_path) not in failed.value.detail


def test_a_language_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackError) as failed:
        scripted()(asked("dpp/acme/a", language="xyz"), context({"dpp/acme/a": pages(tmp_path / "a", 1)}))
    assert (failed.value.code, failed.value.detail) == ("LANGUAGE_MISSING", "there is no xyz here")


def test_an_engine_that_fails_fails_the_run(tmp_path: Path) -> None:
    def broken(_: float) -> None:
        raise EngineFailed("it ended with status 1")

    with pytest.raises(PackError) as failed:
        scripted(broken)(asked("dpp/acme/a"), context({"dpp/acme/a": pages(tmp_path / "a", 1)}))
    assert (failed.value.code, failed.value.detail) == ("OCR_ENGINE_FAILED", "image 1 of 1: it ended with status 1")


@pytest.mark.parametrize("engine", ["auto", "tesseract", "rapidocr"])
def test_without_an_engine_the_pack_is_there_and_its_runs_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("pyoco_server.ports.ocr.present.has_rapidocr", lambda: False)
    execute = wiring_packs.executors({"ocr": ""}, PackConfig(ocr_engine=engine))["ocr"]
    with pytest.raises(PackError) as failed:
        execute(asked("dpp/acme/a"), context({"dpp/acme/a": pages(tmp_path / "a", 1)}))
    assert (failed.value.code, failed.value.detail) == ("NO_OCR_ENGINE", NO_ENGINE[engine])


def test_a_bad_file_of_profiles_stops_the_process_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 1\nprofiles: {}\n")
    with pytest.raises(SettingError, match="PYOCO_OCR_PROFILES_FILE"):
        wiring_packs.executors({"ocr": ""}, PackConfig(ocr_profiles_file=str(tmp_path / "mine.yaml")))


def test_a_page_as_large_as_is_allowed_is_read_in_bounded_time(tmp_path: Path) -> None:
    """10,000 pixels wide, and full of nothing much."""
    page = Image.new("1", (10_000, 4_990), 1)
    ImageDraw.Draw(page).rectangle((100, 100, 9_900, 2_000), fill=0)
    files = {"dpp/acme/a": save(page, tmp_path / "a.tif", compression="group4")}
    began = time.process_time()  # whatever else the machine does
    scripted()(asked("dpp/acme/a"), context(files))
    assert time.process_time() - began < 60
