"""Frames as bytes: exact, whatever way the bytes are cut, and never a crash."""

from __future__ import annotations

import hashlib
import random
import struct
import tracemalloc
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.frames.codec import LENGTH_MAX, NIL, Decoder, Frame, FrameError, Type, encode
from pyoco_server.core.programs.faults import Code
from support.grid.frame_fuzz import fuzz
from support.grid.frame_vectors import BAD, GOOD, LARGEST, LARGEST_HEAD, LARGEST_SHA256, MSG

FRAMES = [frame for frame, _ in GOOD.values()]
GLUED = b"".join(bytes.fromhex(text) for _, text in GOOD.values())


def decoded(data: bytes, *cuts: int) -> list[Frame | FrameError]:
    decoder = Decoder()
    return [item for start, end in pairwise((0, *cuts, len(data))) for item in decoder.feed(data[start:end])]


def only_error(found: list[Frame | FrameError]) -> FrameError:
    (item,) = found
    assert isinstance(item, FrameError)
    return item


@pytest.mark.parametrize("name", GOOD)
def test_a_good_vector_is_the_same_in_both_directions(name: str) -> None:
    """GRID-13, GRID-15, GRID-22"""
    frame, text = GOOD[name]
    assert encode(frame).hex() == text
    assert decoded(bytes.fromhex(text)) == [frame]


def test_the_largest_frame_passes_in_both_directions() -> None:
    """GRID-14, GRID-22"""
    data = encode(LARGEST)
    assert (len(data), data[:43].hex()) == (4_194_308, LARGEST_HEAD)
    assert hashlib.sha256(data).hexdigest() == LARGEST_SHA256
    assert decoded(data, 1, 5, 100_000) == [LARGEST]


def test_one_byte_above_the_limit_is_never_written() -> None:
    """GRID-21"""
    with pytest.raises(FrameError) as caught:
        encode(Frame(Type.RESULT, LARGEST.payload, MSG, subject="x"))
    assert caught.value.code is Code.FRAME_TOO_LARGE


@pytest.mark.parametrize("name", BAD)
def test_a_bad_vector_is_refused_with_its_code(name: str) -> None:
    """GRID-22"""
    text, code = BAD[name]
    error = only_error(decoded(bytes.fromhex(text)))
    assert error.code is code
    assert error.is_fatal == (code is not Code.BAD_SUBJECT)


@pytest.mark.parametrize("name", ["V8", "B1", "B2", "B3", "B4", "B9", "B10"])
def test_a_length_is_judged_by_its_four_bytes_alone(name: str) -> None:
    """GRID-17"""
    data = bytes.fromhex(BAD[name][0])[:4]
    decoder = Decoder()
    assert decoder.feed(data[:3]) == []
    assert only_error(decoder.feed(data[3:])).code is BAD[name][1]
    assert decoder.held == 0


def test_a_frame_with_a_bad_subject_is_refused_and_the_next_one_is_read() -> None:
    """GRID-19"""
    refused, frame = decoded(bytes.fromhex(BAD["B8"][0]) + encode(FRAMES[0]))
    assert isinstance(refused, FrameError)
    assert (refused.code, refused.msg_id) == (Code.BAD_SUBJECT, MSG)
    assert frame == FRAMES[0]


@pytest.mark.parametrize(
    ("subject", "is_legal"),
    [
        ("x" * 255, True),
        ("é" * 127, True),
        ("x" * 256, False),
        ("é" * 128, False),
        ("a b", False),
        ("a\tb", False),
        ("a\nb", False),
        ("a\0b", False),
        ("a\x7fb", False),
        ("a\x85b", False),
        ("a\u3000b", False),
        ("a\u2028b", False),
        ("job.submit.計算", True),
        ("", True),
    ],
)
def test_a_subject_is_short_text_without_blanks(subject: str, is_legal: bool) -> None:
    """GRID-19: by both sides."""
    frame = Frame(Type.SUBMIT_JOB, b"{}", MSG, subject=subject)
    raw = subject.encode()
    head = struct.pack("<IB16s16sH", 39 + len(raw) + 2, Type.SUBMIT_JOB, MSG.bytes, NIL.bytes, len(raw))
    found = decoded(head + raw + struct.pack("<I", 2) + b"{}")
    if is_legal:
        assert found == [frame]
        assert decoded(encode(frame)) == [frame]
    else:
        assert only_error(found).code is Code.BAD_SUBJECT
        with pytest.raises(FrameError, match="BAD_SUBJECT"):
            encode(frame)


def test_a_subject_that_utf8_cannot_hold_is_not_written() -> None:
    """GRID-19"""
    with pytest.raises(FrameError, match="BAD_SUBJECT"):
        encode(Frame(Type.SUBMIT_JOB, b"", MSG, subject="a\ud800"))


def test_any_one_cut_gives_the_same_frames() -> None:
    """GRID-16"""
    for cut in range(len(GLUED) + 1):
        assert decoded(GLUED, cut) == FRAMES


def test_any_set_of_cuts_gives_the_same_frames() -> None:
    """GRID-16"""
    chance = random.Random(8)
    for _ in range(200):
        assert decoded(GLUED, *sorted(chance.sample(range(len(GLUED)), chance.randrange(40)))) == FRAMES


def test_one_byte_at_a_time_gives_the_same_frames() -> None:
    """GRID-16"""
    assert decoded(GLUED, *range(1, len(GLUED))) == FRAMES


def test_a_frame_that_comes_byte_by_byte_costs_no_more_than_its_bytes() -> None:
    """GRID-16: 1 MiB takes a second if each byte is looked at once, and an hour if all are for each."""
    decoder = Decoder()
    data = encode(Frame(Type.ACK_JOB, bytes(1024 * 1024), MSG))
    for place in range(len(data) - 1):
        assert not decoder.feed(data[place : place + 1])
    (frame,) = decoder.feed(data[-1:])
    assert isinstance(frame, Frame)


def test_a_length_of_four_mebibytes_reserves_nothing() -> None:
    """GRID-17: only what was sent is held."""
    head = encode(LARGEST)[:43]
    tracemalloc.start()
    decoders = [Decoder() for _ in range(100)]
    for decoder in decoders:
        assert decoder.feed(head) == []
        assert decoder.held == 43
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1024 * 1024


def test_after_bytes_that_are_no_frame_nothing_is_read_or_held() -> None:
    """GRID-18, GRID-195"""
    decoder = Decoder()
    first, error = decoder.feed(encode(FRAMES[0]) + bytes.fromhex(BAD["B6"][0]) + encode(FRAMES[1]))
    assert first == FRAMES[0]
    assert isinstance(error, FrameError)
    assert decoder.feed(encode(FRAMES[1]) * 100) == []
    assert decoder.held == 0


def test_codes_that_nobody_knows_are_frames_all_the_same() -> None:
    """GRID-23: the door answers them; the codec does not judge."""
    for code in (0x00, 0x13, 0xFF):
        frame = Frame(code, b"x", MSG)
        assert decoded(encode(frame)) == [frame]


def test_the_codes_of_the_types_are_those_of_the_protocol() -> None:
    """GRID-23, LOG-30: 0x01 to 0x12, none for votes, log entries or peers; from 0x20 those of capabilities"""
    assert [int(each) for each in Type] == [*range(0x01, 0x13), 0x20, 0x21]


def test_a_frame_does_not_show_its_payload() -> None:
    """GRID-169"""
    assert "secret" not in repr(Frame(Type.HELLO_CLIENT, b"secret", MSG))


@given(
    kind=st.integers(0, 255),
    payload=st.binary(max_size=300),
    msg_id=st.uuids(),
    corr_id=st.uuids(),
    subject=st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"]), max_size=60),
)
def test_whatever_is_written_is_read(kind: int, payload: bytes, msg_id: UUID, corr_id: UUID, subject: str) -> None:
    """GRID-16, GRID-18"""
    frame = Frame(kind, payload, msg_id, corr_id, subject)
    data = encode(frame)
    assert (
        int.from_bytes(data[:4], "little") == len(data) - 4 == 39 + len(subject.encode()) + len(payload) <= LENGTH_MAX
    )
    assert decoded(data) == [frame]


def test_random_bytes_give_frames_or_refusals_and_nothing_else() -> None:
    """GRID-22, GRID-195: fifty thousand of them here, a million among the proofs."""
    seen = fuzz(50_000, seed=8)
    assert set(seen) == {"frame", "nothing yet", "BAD_FRAME", "FRAME_TOO_LARGE", "BAD_SUBJECT"}
    assert min(seen.values()) > 100, seen
