"""From words to text: nothing is left out, nothing stands there twice, and what is a guess says so."""

from __future__ import annotations

import io
import itertools
import xml.etree.ElementTree as ET
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.ocr.documents import PageText, docx, markdown
from pyoco_server.core.ocr.ink import unread, without_rules
from pyoco_server.core.ocr.layout import sniff
from pyoco_server.core.ocr.marking import DOUBTFUL, UNREADABLE, Block, blocks_of, mean_confidence, readings_to_verify
from pyoco_server.core.ocr.merging import merge, with_gaps, with_language
from pyoco_server.core.ocr.page import Box, Ink, TextLine, TextWord, bounds
from pyoco_server.executors.packs.ocr_profiles import read_profiles

P1 = read_profiles("")["P1"]
HEIGHT = 30


def line(text: str, top: int = 0, confidence: float = 0.9, left: int = 0) -> TextLine:
    """Words of 20 pixels for each letter, 15 pixels apart."""
    words = []
    for word in text.split():
        words.append(TextWord(word, confidence, Box(left, top, left + 20 * len(word), top + HEIGHT)))
        left += 20 * len(word) + 15
    return TextLine(tuple(words), bounds(word.box for word in words))


def line_of(*words: tuple[str, float], gap: int = 15) -> TextLine:
    made, left = [], 0
    for text, confidence in words:
        made.append(TextWord(text, confidence, Box(left, 0, left + 20 * max(1, len(text)), HEIGHT)))
        left = made[-1].box.right + gap
    return TextLine(tuple(made), bounds(word.box for word in made))


@pytest.mark.parametrize(
    ("words", "gap", "written"),
    [
        ([("sure", 0.9), ("guess", 0.5)], 15, "sure guess(?)"),
        ([("sure", 0.9), ("xq;", 0.1), ("sure", 0.9)], 15, "sure [□] sure"),
        ([("", 0.0), ("xq;", 0.1), ("sure", 0.9)], 15, "[□] sure"),
        ([("one", 0.5), ("two", 0.5)], 15, "one(?) two(?)"),
        ([("東", 0.5), ("京", 0.5), ("都", 0.9)], 0, "東京(?)都"),
        ([("東京", 0.9), ("2024", 0.9), ("年", 0.9)], 15, "東京2024年"),
        ([("안녕", 0.9), ("하세요", 0.9)], 2, "안녕하세요"),
        ([("안녕", 0.9), ("하세요", 0.9)], 15, "안녕 하세요"),
        ([("12", 0.6), ("13", 0.599)], 15, "12 13(?)"),
        ([("12", 0.2), ("13", 0.199)], 15, "12(?) [□]"),
    ],
)
def test_marks_stand_where_the_words_stand(words: list[tuple[str, float]], gap: int, written: str) -> None:
    """PRICED-149"""
    (block,) = blocks_of([line_of(*words, gap=gap)], P1)
    assert block.text == written


def test_what_is_doubtful_is_listed_once_for_each_word_and_punctuation_is_not() -> None:
    """PRICED-149"""
    lines = [line_of(("東", 0.5), ("京", 0.5), gap=0), line_of(("guess", 0.5), ("sure", 0.9), ("--", 0.5), ("x", 0.1))]
    assert readings_to_verify(lines, P1) == ["東京", "guess"]


@given(st.lists(st.tuples(st.sampled_from(["", "a", "東", "한", "12"]), st.floats(0, 1)), min_size=1, max_size=12))
def test_every_word_is_in_the_text_or_a_mark_is(words: list[tuple[str, float]]) -> None:
    """PRICED-149"""
    (block,) = blocks_of([line_of(*words)], P1)
    assert block.text.count(DOUBTFUL) <= sum(P1.unreadable_below <= sure < P1.doubtful_below for _, sure in words)
    rest = block.text.replace(DOUBTFUL, "")
    for is_lost, group in itertools.groupby(words, key=lambda word: not word[0] or word[1] < P1.unreadable_below):
        for text, _ in [("", 0.0)] if is_lost else list(group):
            expected = UNREADABLE if is_lost else text
            rest = rest.lstrip()
            assert rest.startswith(expected)
            rest = rest.removeprefix(expected)
    assert not rest.strip()


def test_blocks_are_lines_that_stand_together() -> None:
    title = TextLine((TextWord("Title", 0.9, Box(0, 0, 300, 70)),), Box(0, 0, 300, 70))
    lines = [title, line("one two", 90), line("three", 130), line("four", 400), line("beside", 400, left=600)]
    blocks = blocks_of(lines, P1)
    assert [block.text for block in blocks] == ["Title", "one two\nthree", "four", "beside"]
    assert [block.is_title for block in blocks] == [True, False, False, False]


def test_the_score_of_a_page_counts_what_nobody_could_read() -> None:
    assert mean_confidence([line_of(("a", 1.0), ("", 0.0))]) == 0.5
    assert mean_confidence([]) is None


# ---- Merging ----


def texts(lines: list[TextLine]) -> list[str]:
    return [" ".join(word.text for word in each.words) for each in lines]


def test_of_two_readings_of_a_line_the_surer_one_is_kept_in_its_place() -> None:
    body = [line("first", 0), line("secand", 50, 0.4), line("third", 100)]
    assert texts(merge(body, [line("second", 51, 0.9)])) == ["first", "second", "third"]
    assert texts(merge(body, [line("sexxnd", 51, 0.3)])) == ["first", "secand", "third"]


def test_a_surer_reading_that_leaves_something_out_is_not_taken() -> None:
    """PRICED-149"""
    body = [line("all of this text", 0, 0.5)]
    assert texts(merge(body, [line("all of", 0, 0.99)])) == ["all of this text"]
    assert texts(merge([line("all of", 0, 0.99)], [line("all of this text", 0, 0.5)])) == ["all of this text"]


def test_what_only_the_second_look_saw_is_put_where_it_stands() -> None:
    """PRICED-149"""
    body = [line("first", 0), line("third", 100)]
    assert texts(merge(body, [line("second", 50), line("fourth", 150)])) == ["first", "second", "third", "fourth"]
    assert texts(merge([], [line("alone", 50)])) == ["alone"]


@given(
    st.lists(st.tuples(st.integers(0, 8), st.floats(0, 1)), max_size=6, unique_by=lambda each: each[0]),
    st.lists(st.tuples(st.integers(0, 8), st.floats(0, 1)), max_size=6, unique_by=lambda each: each[0]),
)
def test_each_row_that_anyone_read_is_there_once(body: list[tuple[int, float]], again: list[tuple[int, float]]) -> None:
    """PRICED-149: no duplicates, no losses."""
    merged = merge(
        [line(f"row {row}", 50 * row, sure) for row, sure in sorted(body)],
        [line(f"row {row}", 50 * row + 3, sure) for row, sure in again],
    )
    assert texts(merged) == [f"row {row}" for row in sorted({row for row, _ in [*body, *again]})]


def test_a_gap_in_a_line_becomes_a_word_of_it_and_one_elsewhere_a_line() -> None:
    """PRICED-149"""
    lines = [line("one", 0), line("two", 100)]
    marked = with_gaps(lines, [Box(70, 2, 130, 28), Box(0, 50, 200, 80)])
    assert [block.text for block in blocks_of(marked, P1)] == ["one [□]\n[□]\ntwo"]


@pytest.mark.parametrize(
    ("kept", "other", "read"),
    [
        ([("금액은", 0.9), ("원", 0.9)], [("SAS", 0.95), ("of", 0.3)], "금액은 원"),
        ([("금액은", 0.9), ("PDF", 0.5)], [("SAS", 0.5), ("PDF", 0.95)], "금액은 PDF"),
        ([("금액은", 0.9), ("P0F", 0.5)], [("SAS", 0.6), ("PDF", 0.55)], "금액은 P0F"),
        ([("가나", 0.3), ("다라", 0.4)], [("An", 0.95), ("ox", 0.95)], "An ox"),
        ([("가나", 0.9), ("다라", 0.3)], [("An", 0.2), ("ox", 0.95)], "가나 다라"),
        ([("글", 0.95), ("b", 0.2), ("c", 0.2)], [("x", 0.5), ("be", 0.9), ("co", 0.9)], "글 be co"),
    ],
)
def test_of_two_languages_the_surer_one_has_the_line_and_no_latin_word_takes_the_place_of_another_script(
    kept: list[tuple[str, float]], other: list[tuple[str, float]], read: str
) -> None:
    def placed(words: list[tuple[str, float]]) -> TextLine:
        made = [TextWord(text, sure, Box(80 * at, 0, 80 * at + 60, HEIGHT)) for at, (text, sure) in enumerate(words)]
        return TextLine(tuple(made), bounds(word.box for word in made))

    assert texts(with_language([placed(kept)], [placed(other)])) == [read]


# ---- Ink ----


def ink_of(picture: str, cell: int = 10) -> Ink:
    rows = [row.ljust(max(map(len, picture.split("\n")))) for row in picture.split("\n")]
    return Ink(len(rows[0]), cell, tuple(int("".join("01"[mark != " "] for mark in row), 2) for row in rows))


TEXT = "\n".join(["", *["  ##  ### ## ####  ##  ### ## ####  ", " " + "## " * 11 + "  ", "  "] * 3])


def test_lines_that_were_not_read_are_found_and_those_that_were_are_not() -> None:
    """PRICED-149"""
    ink = without_rules(ink_of(TEXT))
    whole = [TextLine((TextWord("x", 0.9, box),), box) for box in (Box(10, 10, 350, 30), Box(10, 40, 350, 60))]
    assert unread(ink, whole, 20) == [Box(10, 70, 340, 90)]
    assert len(unread(ink, [], 20)) == 3


def test_half_a_line_that_was_not_read_is_found() -> None:
    """PRICED-149"""
    ink = without_rules(ink_of(TEXT))
    lines = [
        TextLine((TextWord("x", 0.9, Box(10, top, 350, top + 20)),), Box(10, top, 350, top + 20)) for top in (10, 40)
    ]
    half = TextLine((TextWord("x", 0.9, Box(10, 70, 150, 90)),), Box(10, 70, 150, 90))
    (found,) = unread(ink, [*lines, half], 20)
    assert found.left >= 150
    assert found.right == 340


def test_frames_and_specks_are_no_text() -> None:
    rows = ["#" * 120, *["#" + " " * 118 + "#"] * 60, "#" * 120]
    rows[20] = "#   #" + " " * 114 + "#"
    assert not any(without_rules(ink_of("\n".join(rows))).rows)
    assert sniff(ink_of("\n".join(rows))).kind == "blank"


def test_the_stems_of_letters_are_no_rules() -> None:
    picture = "\n".join(["", *["  #  ##  # ## #  ##  # ##  #"] * 30, ""])
    assert without_rules(ink_of(picture)) == ink_of(picture)


@pytest.mark.parametrize(
    ("picture", "kind"),
    [
        ("      \n      \n", "blank"),
        ("\n" + "## ### #### " * 3 + "\n" + "## ### #### " * 3 + "\n", "line"),
        (TEXT, "block"),
        ("\n".join(row + "          " + row for row in TEXT.split("\n")), "columns"),
        ("\n".join(["", *["###" + " " * 50 + "###", "###" + " " * 50 + "###", ""] * 4]), "scattered"),
    ],
    ids=["blank", "line", "block", "columns", "scattered"],
)
def test_the_preflight_tells_the_kinds_of_pages_apart(picture: str, kind: str) -> None:
    """PRICED-148"""
    assert sniff(ink_of(picture)).kind == kind


def test_columns_are_read_one_after_the_other_below_what_goes_over_both() -> None:
    wide = ["", "## " * 27, "## " * 27, ""]
    rows = [row.ljust(36) + "          " + row.ljust(36) for row in TEXT.split("\n")]
    layout = sniff(ink_of("\n".join([*wide, *rows])))
    assert layout.kind == "columns"
    top, left, right = (region.box for region in layout.regions)
    assert top.bottom <= left.top
    assert left.right <= right.left
    assert len(layout.regions[1].strips) == 3


# ---- Documents ----

PAGES = [
    PageText(
        "dpp/acme/a_b/c*.png",
        1,
        [
            Block("A & B <title>", 0.9, is_title=True),
            Block("# no heading\n1. no list\n<script>alert(1)</script> *x* [□] word(?) [a](b) \x01\x0b\ud800", 0.9),
        ],
    ),
    PageText("dpp/acme/b.png", 2, []),
]


def test_markdown_is_what_was_read_and_nothing_of_it_is_markup() -> None:
    text = markdown(PAGES).decode()
    assert text.startswith("## dpp/acme/a\\_b/c\\*.png, page 1\n\n### A \\& B \\<title\\>\n\n")
    assert "\\# no heading  \n1\\. no list  \n\\<script\\>alert(1)\\</script\\>" in text
    assert " [□] word(?) \\[a\\](b) " in text
    assert text.endswith("## dpp/acme/b.png, page 2\n\n*(nothing was seen on this page)*\n")


def test_a_document_is_a_whole_archive_of_well_formed_parts_with_all_the_text() -> None:
    data = docx(PAGES)
    assert data == docx(PAGES), "the same text gives the same bytes"
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert file.testzip() is None
        parts = {name: ET.fromstring(file.read(name)) for name in file.namelist()}
    w = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
    told = "\n".join(piece.text or "" for piece in parts["word/document.xml"].iter(f"{w}t"))
    for words in (
        "A & B <title>",
        "<script>alert(1)</script> *x* [□] word(?) [a](b)",
        "(nothing was seen on this page)",
    ):
        assert words in told
    for override in parts["[Content_Types].xml"].findall("{*}Override"):
        assert override.attrib["PartName"].removeprefix("/") in parts
    for name, folder in (("_rels/.rels", ""), ("word/_rels/document.xml.rels", "word/")):
        for relation in parts[name]:
            assert folder + relation.attrib["Target"] in parts


@given(st.text())
def test_any_text_makes_a_document_that_can_be_opened(text: str) -> None:
    page = PageText(text, 1, [Block(text, 0.5)])
    markdown([page]).decode()
    with zipfile.ZipFile(io.BytesIO(docx([page]))) as file:
        ET.fromstring(file.read("word/document.xml"))
