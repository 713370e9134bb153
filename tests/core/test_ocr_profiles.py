"""What the OCR profiles select is a table, and a wrong table is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

import pyoco_server.core.ocr
from pyoco_server.core.ocr.engines import NO_ENGINE, choose
from pyoco_server.core.ocr.profiles import LAYOUTS, MODES, STEPS, BadProfiles, parse_profiles
from pyoco_server.core.packs.ocr import PROFILES
from pyoco_server.errors import SettingError
from pyoco_server.executors.packs.ocr_profiles import read_profiles

OURS = Path(pyoco_server.core.ocr.__file__).with_name("profiles.yaml")


@pytest.fixture
def document() -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load(OURS.read_text())
    return copy.deepcopy(told)


def test_the_file_that_comes_along_has_every_profile_and_each_says_everything() -> None:
    """PRICED-148"""
    profiles = read_profiles("")
    assert tuple(profiles) == PROFILES
    for profile in profiles.values():
        assert set(profile.modes) == set(LAYOUTS)
        assert set(profile.modes.values()) <= set(MODES)
        assert set(profile.preprocessing) == set(STEPS)
        assert "body" in profile.passes
        assert 0 <= profile.unreadable_below <= profile.doubtful_below <= 1


def change(document: dict[str, Any], path: str, value: Any) -> None:
    *steps, last = path.split(".")
    for step in steps:
        document = document[step]
    if value is KeyError:
        del document[last]
    else:
        document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("version", 2, "version must be 1"),
        ("version", True, "version must be 1"),
        ("more", 1, "the file has 'more'"),
        ("profiles", [], "profiles must be a mapping"),
        ("profiles.P1", KeyError, "profiles lacks P1"),
        ("profiles.P4", {}, "profiles has 'P4'"),
        ("profiles.P1.mode", "block", "P1 has 'mode'"),
        ("profiles.P2A.modes.block", "blok", "P2A.modes.block must be one of line, block"),
        ("profiles.P2A.modes.line", KeyError, "P2A.modes lacks line"),
        ("profiles.P2B.preprocessing.invert", True, "P2B.preprocessing.invert must be one of never"),
        ("profiles.P2B.preprocessing.enlarge", "always", "must be one of never, when_needed"),
        ("profiles.P3.passes", "body", "P3.passes must be a list"),
        ("profiles.P3.passes", ["title"], "P3.passes must have body"),
        ("profiles.P3.passes", ["body", "title"], "P3.passes must be in the order title, body, fine_print"),
        ("profiles.P3.passes", ["body", "body"], "each once at most"),
        ("profiles.P3.passes", ["body", "footer"], "P3.passes[1] must be one of title"),
        ("profiles.P1.doubtful_below", "0.6", "P1.doubtful_below must be a number from 0 to 1"),
        ("profiles.P1.doubtful_below", 60, "P1.doubtful_below must be a number from 0 to 1"),
        ("profiles.P1.unreadable_below", float("nan"), "P1.unreadable_below must be a number"),
        ("profiles.P1.unreadable_below", 0.9, "must not be above"),
    ],
)
def test_a_wrong_table_is_refused_with_the_place_and_what_may_stand_there(
    document: dict[str, Any], path: str, value: Any, told: str
) -> None:
    """PRICED-148"""
    change(document, path, value)
    with pytest.raises(BadProfiles) as refused:
        parse_profiles(document)
    assert told in str(refused.value)


@pytest.mark.parametrize("document", [None, [], "P1", 1, {}], ids=str)
def test_what_is_no_table_at_all_is_refused(document: object) -> None:
    with pytest.raises(BadProfiles):
        parse_profiles(document)


def test_a_file_of_the_operator_replaces_ours(tmp_path: Path, document: dict[str, Any]) -> None:
    """PRICED-148: configuration, not code."""
    change(document, "profiles.P1.modes.block", "sparse")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document))
    assert read_profiles(str(tmp_path / "mine.yaml"))["P1"].modes["block"] == "sparse"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"version: [", "PYOCO_OCR_PROFILES_FILE"),
        (b"version: 1\nversion: 1\n", "PYOCO_OCR_PROFILES_FILE"),
        (b"version: 1\nprofiles: {}\n", "profiles lacks P1"),
        (b"#" * (1 << 20) + b"#", "more than"),
    ],
    ids=["missing", "no text", "no YAML", "a key twice", "nothing", "too large"],
)
def test_a_bad_file_names_the_setting_and_what_is_wrong(tmp_path: Path, content: bytes | None, told: str) -> None:
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingError) as refused:
        read_profiles(str(file))
    assert "PYOCO_OCR_PROFILES_FILE" in str(refused.value)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "tesseract", "rapidocr", "chosen"),
    [
        ("auto", True, True, "tesseract"),
        ("auto", False, True, "rapidocr"),
        ("auto", False, False, None),
        ("tesseract", False, True, None),
        ("rapidocr", True, True, "rapidocr"),
        ("rapidocr", True, False, None),
    ],
)
def test_the_engine_is_the_one_asked_for_or_the_first_there_is(
    asked: str, tesseract: bool, rapidocr: bool, chosen: str | None
) -> None:
    assert choose(asked, has_tesseract=tesseract, has_rapidocr=rapidocr) == chosen


@pytest.mark.parametrize("told", NO_ENGINE.values())
def test_where_there_is_no_engine_both_are_named(told: str) -> None:
    assert "apt-get install tesseract-ocr" in told
    assert "pip install 'pyoco-server[ocr]'" in told
    assert len(told) < 290, "the detail of a failed run is cut at 300"
