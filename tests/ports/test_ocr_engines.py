"""The engines: what they read, and how they end when they do not."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pyoco_server.core.ocr.page import Raster
from pyoco_server.ports.ocr import present
from pyoco_server.ports.ocr import rapidocr as rapidocr_module
from pyoco_server.ports.ocr.port import Engine, EngineFailed, LanguageMissing, OutOfTime
from pyoco_server.ports.ocr.rapidocr import RapidOcr
from pyoco_server.ports.ocr.tesseract import Tesseract, read_tsv
from support.priced.ocr_pages import TEXTS, draw, need_tesseract, similarity


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On a disk: on some machines no program may be started in memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def raster(language: str, lines: list[str] | None = None) -> Raster:
    page = draw(language, lines)
    return Raster(page.width, page.height, page.tobytes())


def text_read(engine: Engine, page: Raster, language: str, mode: str = "block") -> str:
    lines = engine.read(page, mode, language.split("+"), 60)
    return "\n".join("".join(word.text for word in line.words) for line in lines)


@pytest.mark.parametrize("language", ["eng", "kor", "jpn"])
def test_tesseract_reads_its_languages(language: str) -> None:
    need_tesseract()
    engine = Tesseract()
    engine.check([language])
    assert engine.version[0].isdigit()
    page = raster(language)
    lines = engine.read(page, "block", [language], 60)
    assert similarity("".join(word.text for line in lines for word in line.words), "".join(TEXTS[language])) >= 0.9
    assert len(lines) == len(TEXTS[language])
    for line in lines:
        assert 0 <= line.box.left < line.box.right <= page.width
        assert 0 <= line.box.top < line.box.bottom <= page.height
        assert 0.3 <= line.confidence <= 1


def test_what_tesseract_has_no_data_for_is_named_with_the_package() -> None:
    need_tesseract()
    with pytest.raises(LanguageMissing) as told:
        Tesseract().check(["eng", "xyz", "osd"])
    assert "xyz, osd" in str(told.value)
    assert "apt-get install tesseract-ocr-xyz" in str(told.value)
    assert "eng," not in str(told.value)


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "tesseract"
    listed = (
        "case $1 in --version) echo tesseract 9.9.9; exit;; --list-langs) printf 'List:\\neng\\nosd\\n'; exit;; esac"
    )
    path.write_text(f"#!/bin/sh\n{listed}\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_tesseract_tells_its_languages_or_is_not_waited_for(tmp_path: Path) -> None:
    assert Tesseract(script(tmp_path, "")).languages == ("eng",)
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(OutOfTime):
        Tesseract(str(hangs), ask_seconds=0.2)
    assert time.monotonic() - began < 60


PAGE = Raster(10, 10, bytes(100))


def test_a_command_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    engine = Tesseract(script(tmp_path, "exec sleep 600"))
    began = time.monotonic()
    with pytest.raises(OutOfTime):
        engine.read(PAGE, "block", ["eng"], 0.3)
    assert time.monotonic() - began < 60
    assert not any(child.name() == "sleep" for child in psutil.Process().children())


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("exec yes", "more about a page"),
        ("exit 3", "status 3"),
        ("kill -9 $$", "status -9"),
        ("printf 'level\\n5\\t1\\t1\\t1\\t1\\t1\\tx\\t0\\t0\\t0\\t0\\tword\\n'", "form"),
    ],
    ids=["endless", "failing", "killed", "nonsense"],
)
def test_a_command_that_misbehaves_is_an_engine_that_failed(tmp_path: Path, body: str, told: str) -> None:
    engine = Tesseract(script(tmp_path, body))
    assert engine.version == "9.9.9"
    with pytest.raises(EngineFailed) as failed:
        engine.read(PAGE, "block", ["eng"], 30)
    assert told in str(failed.value)


def test_scripts_other_than_latin_are_asked_for_one_by_one(tmp_path: Path) -> None:
    """Together with English, Korean words become Latin ones of which tesseract is sure (measured)."""
    engine = Tesseract(script(tmp_path, f'echo "$4" >> {tmp_path}/asked'))
    engine.read(PAGE, "block", ["kor", "eng", "jpn", "deu", "chi"], 30)
    assert (tmp_path / "asked").read_text().split() == ["kor", "eng+deu", "jpn", "chi_sim"]


def test_a_command_that_cannot_be_started_is_an_engine_that_failed(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed):
        Tesseract(str(tmp_path / "nothing"))


def test_tesseract_goes_with_the_group_of_whoever_started_it(tmp_path: Path) -> None:
    """A pack's process is ended with its group; nothing of it may be in another one."""
    command = script(tmp_path, "exec sleep 600")
    code = (
        "from pyoco_server.ports.ocr.tesseract import Tesseract; from pyoco_server.core.ocr.page import Raster;"
        f"Tesseract({command!r}).read(Raster(1, 1, b'x'), 'block', ['eng'], 600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        deadline = time.monotonic() + 100
        children: list[psutil.Process] = []
        while not children and time.monotonic() < deadline:
            children = [child for child in psutil.Process(process.pid).children() if child.name() == "sleep"]
            time.sleep(0.02)
        (child,) = children
        groups = Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2].split()[2]
        assert int(groups) == process.pid
    finally:
        psutil.Process(process.pid).kill()
        for child in children:
            child.kill()
        process.wait()


def test_the_table_of_words_is_read_as_it_is() -> None:
    rows = [
        ["level", "page_num", "block_num", "par_num", "line_num", "word_num", "left", "top", "width", "height", "conf"],
        ["4", "1", "1", "1", "1", "0", "5", "6", "100", "20", "-1", ""],
        ["5", "1", "1", "1", "1", "1", "5", "6", "40", "20", "96.5", 'say"\ttab'],
        ["5", "1", "1", "1", "1", "2", "50", "6", "40", "20", "-1", "less"],
        ["4", "1", "1", "1", "2", "0", "5", "60", "100", "20", "-1", ""],
        ["5", "1", "1", "1", "2", "1", "5", "60", "40", "20", "95", " "],
        ["7", "what", "is", "this"],
    ]
    (line,) = read_tsv("\n".join("\t".join(row) for row in rows) + "\n")
    assert [(word.text, word.confidence) for word in line.words] == [('say"\ttab', 0.965), ("less", 0.0)]
    assert read_tsv("") == []


@pytest.mark.parametrize("language", ["eng", "jpn"])
def test_rapidocr_reads_its_languages_with_the_models_it_brings(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rapidocr.utils.download_file import DownloadFile

    def never(*_: object) -> None:
        raise AssertionError("a download")

    monkeypatch.setattr(DownloadFile, "run", never)
    monkeypatch.setattr(DownloadFile, "download", never, raising=False)
    engine = RapidOcr()
    engine.check([language])
    read = text_read(engine, raster(language, list(TEXTS[language][:2])), language)
    assert similarity(read, "".join(TEXTS[language][:2])) >= 0.9
    assert engine.read(Raster(60, 60, b"\xff" * 3600), "block", [language], 60) == []


def test_rapidocr_says_what_it_cannot_read_and_what_can() -> None:
    with pytest.raises(LanguageMissing) as told:
        RapidOcr().check(["kor", "eng"])
    assert "rapidocr does not read kor" in str(told.value)
    assert "tesseract-ocr-kor" in str(told.value)


def test_rapidocr_without_its_models_is_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rapidocr_module, "_folder", lambda: tmp_path)
    with pytest.raises(EngineFailed):
        RapidOcr()


def test_rapidocr_begins_nothing_that_it_could_not_end() -> None:
    with pytest.raises(OutOfTime):
        RapidOcr().read(PAGE, "block", ["eng"], 0.1)


def test_what_is_here_is_seen_without_loading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert not present.has_tesseract()
    assert present.engine_here("auto") == "rapidocr"
    monkeypatch.setattr(present, "has_rapidocr", lambda: False)
    assert present.engine_here("auto") is None
