"""The codec: its vectors, every cut of them, and a million random inputs."""

from __future__ import annotations

import gc
import hashlib

import psutil

from pyoco_server.core.frames.codec import Decoder, Frame, FrameError, encode
from support.grid.frame_fuzz import fuzz
from support.grid.frame_vectors import BAD, GOOD, LARGEST, LARGEST_SHA256
from support.proofs.report import Findings, proof
from support.proofs.sizes import SEED, size

_GROWTH_MAX = 16 * 2**20


def test_whatever_bytes_come_the_codec_gives_frames_or_says_why_not() -> None:
    """P2: GRID-22, GRID-16, GRID-195"""
    codec(inputs=size(20_000, 1_000_000))


def codec(*, inputs: int) -> None:
    with proof("P2", "the codec", inputs=inputs) as found:
        _vectors()
        found.note(cuts=_cuts(found))
        fuzz(2_000, SEED)  # so that what is made once is made
        before = _resident()
        seen = fuzz(inputs, SEED)
        grown = _resident() - before
        found.note(answers=seen, grown_kib=grown // 1024)
        assert set(seen) == {"frame", "nothing yet", "BAD_FRAME", "FRAME_TOO_LARGE", "BAD_SUBJECT"}
        assert grown < _GROWTH_MAX


def _vectors() -> None:
    for frame, text in GOOD.values():
        assert encode(frame).hex() == text
        assert Decoder().feed(bytes.fromhex(text)) == [frame]
    assert hashlib.sha256(encode(LARGEST)).hexdigest() == LARGEST_SHA256
    assert Decoder().feed(encode(LARGEST)) == [LARGEST]
    for text, code in BAD.values():
        (error,) = Decoder().feed(bytes.fromhex(text))
        assert isinstance(error, FrameError)
        assert error.code is code


def _cuts(found: Findings) -> int:
    """The good vectors glued together: cut once anywhere, into single bytes, and at random sets of points."""
    frames = [frame for frame, _ in GOOD.values()]
    glued = b"".join(map(encode, frames))
    sets = [[place] for place in range(len(glued) + 1)] + [list(range(len(glued)))]
    sets += [sorted(found.chance.sample(range(len(glued)), found.chance.randrange(2, 40))) for _ in range(200)]
    for places in sets:
        decoder, got = Decoder(), list[Frame | FrameError]()
        for begin, end in zip([0, *places], [*places, len(glued)], strict=True):
            got += decoder.feed(glued[begin:end])
        assert got == frames
    return len(sets)


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
