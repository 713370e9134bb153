"""The protocol page is true: its vectors, tables and lists are those of the code."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from pyoco_server.core.frames.codec import Decoder, FrameError, Type, encode
from pyoco_server.core.frames.subjects import matches
from pyoco_server.core.programs.faults import FACTS, Code
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.frames.wire import CLOSE_REASONS, Timers
from support.grid.frame_vectors import BAD, GOOD, LARGEST

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "frames.md").read_text()
LINES = dict(re.findall(r"^([VB]\d+[\w-]*) (\S.*)$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", GOOD)
def test_a_good_vector_of_the_page_is_what_the_codec_writes_and_reads(name: str) -> None:
    """GRID-22"""
    data = bytes.fromhex(LINES[name])
    (frame,) = Decoder().feed(data)
    assert not isinstance(frame, FrameError)
    assert frame == GOOD[name][0]
    assert encode(frame) == data


def test_the_largest_vector_of_the_page_is_what_the_codec_writes() -> None:
    """GRID-22"""
    data = encode(LARGEST)
    assert data[:43].hex() == LINES["V7-first-43-bytes"]
    assert hashlib.sha256(data).hexdigest() == LINES["V7-sha256"]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_vector_of_the_page_is_refused_with_its_code(name: str) -> None:
    """GRID-22"""
    text, code = LINES[name].split()
    (error,) = Decoder().feed(bytes.fromhex(text))
    assert isinstance(error, FrameError)
    assert error.code == code
    assert f"| {name} | `{code}` |" in PAGE


def test_the_worked_example_is_the_fourth_vector() -> None:
    """GRID-22"""
    block = PAGE.split("```text")[1].split("```")[0]
    dumped = "".join(re.match(r"((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)", line)[1] for line in block.split("\n") if line)  # type: ignore[index]
    assert dumped.replace(" ", "") == LINES["V4"]


def test_every_type_is_on_the_page_with_its_code() -> None:
    """GRID-23"""
    rows = re.findall(r"^\| (0x[0-9A-F]{2}) \| (\w+) \|", PAGE, re.MULTILINE)
    assert [(int(code, 16), name.upper()) for code, name in rows] == [
        (int(kind), kind.name.replace("_", "")) for kind in Type
    ]


def test_the_table_of_matches_is_what_the_matcher_says() -> None:
    """GRID-29"""
    table = PAGE.split("| Pattern | Subject | Match |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \| (yes|no) \|$", table, re.MULTILINE)
    assert len(rows) == 24
    assert [(pattern, subject, "yes" if matches(pattern, subject) else "no") for pattern, subject, _ in rows] == rows


def test_every_code_reason_and_timer_is_on_the_page() -> None:
    """GRID-33: sections 26.2 and 26.3."""
    table = PAGE.split("## Error codes")[1].split("## Test vectors")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    told = {Code(code): "| yes" in row for row in rows for code in re.findall(r"`([A-Z_]+)`", row.split(" | ")[0])}
    assert told == {code: FACTS[code].retry for code in Code}
    assert set(re.findall(r"`([a-z_]+)`", table)) == CLOSE_REASONS
    codes = PAGE.split("`ErrorCode` is one of ")[1].split("\n")[0]
    assert re.findall(r"`([A-Z_]+)`", codes) == list(ErrorCode)
    times = re.findall(r"^\| (\d+) s \|", PAGE.split("### Timers")[1].split("###")[0], re.MULTILINE)
    assert [float(each) for each in times] == list(vars(Timers()).values())


def test_the_page_names_no_rule() -> None:
    assert not re.search(r"GRID-\d", PAGE)
