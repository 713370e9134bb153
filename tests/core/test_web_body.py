"""Bodies: decoded as they come, and bounded."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyoco_server.core.web.body import Body, Flag

KEPT, FED = 1_000, 50_000


def fed(encoding: str, data: bytes, step: int = 65_536) -> Body:
    body = Body(encoding, KEPT, FED)
    for at in range(0, len(data), step):
        if not body.wants:
            break
        body.feed(data[at : at + step])
    body.end()
    return body


def raw(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    return deflate.compress(data) + deflate.flush()


ENCODED = {"": bytes, "identity": bytes, "gzip": gzip.compress, "X-GZIP": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("step", [1, 7, 65_536])
@pytest.mark.parametrize(("encoding", "encode"), [*ENCODED.items(), ("deflate", raw)])
@pytest.mark.parametrize("size", [0, 1, KEPT - 1, KEPT])
def test_a_body_is_what_was_encoded(encoding: str, encode: type[bytes], size: int, step: int) -> None:
    data = b"ab" * (size // 2) + b"a" * (size % 2)
    body = fed(encoding, encode(data), step)
    assert (body.data, body.flag) == (data, None)


@pytest.mark.parametrize("step", [1, 65_536])
@pytest.mark.parametrize(("encoding", "encode"), [*ENCODED.items(), ("deflate", raw)])
def test_of_a_longer_one_the_beginning_is_kept(encoding: str, encode: type[bytes], step: int) -> None:
    """PRICED-139"""
    body = fed(encoding, encode(b"x" * (KEPT + 1)), step)
    assert (body.data, body.flag) == (b"x" * KEPT, Flag.TRUNCATED)


def test_a_bomb_expands_to_what_is_kept() -> None:
    """PRICED-139"""
    bomb = gzip.compress(b"\0" * 50_000_000)
    assert len(bomb) < 100_000
    body = Body("gzip", KEPT, 1_000_000)
    tracemalloc.start()
    body.feed(bomb)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000
    assert (len(body.data), body.flag) == (KEPT, Flag.TRUNCATED)


def test_members_of_a_stream_follow_each_other_and_padding_does_not() -> None:
    data = gzip.compress(b"one ") + gzip.compress(b"two") + b"\0" * 100
    assert fed("gzip", data).data == b"one two"
    assert fed("gzip", data).flag is None


@pytest.mark.parametrize("step", [1, 2, 3, 7, 4_096])
def test_members_follow_each_other_however_they_are_cut(step: int) -> None:
    data = gzip.compress(b"one ") + gzip.compress(b"two")
    for end in (b"", b"\0", b"\0\x1f", b"garbage"):
        body = fed("gzip", data + end, step)
        assert (body.data, body.flag) == (b"one two", None)
    assert fed("gzip", data + b"\x1f", step).flag is Flag.ENCODING_BROKEN


@pytest.mark.parametrize(
    ("encoding", "data"),
    [("gzip", gzip.compress(b"hi")), ("deflate", zlib.compress(b"hi")), ("deflate", raw(b"hi"))],
    ids=["gzip", "zlib", "raw"],
)
@pytest.mark.parametrize("is_at_once", [True, False])
def test_nothing_is_wanted_behind_the_end(encoding: str, data: bytes, is_at_once: bool) -> None:
    """Twenty megabytes of padding took seconds, and were kept"""
    body, more = Body(encoding, KEPT, 20_000_000), b"\0" * 1_000_000
    if is_at_once:
        body.feed(data + more)
    else:
        body.feed(data)
        body.feed(more)
    assert (body.wants, body.flag) == (False, None)
    tracemalloc.start()
    for _ in range(3):
        body.feed(more)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 100_000
    body.end()
    assert (body.data, body.flag) == (b"hi", None)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [("gzip", gzip.compress(b"") * 1_100), ("deflate", b"\0\0\0\xff\xff" * 11_000)],
    ids=["members", "empty blocks"],
)
def test_a_stream_that_expands_to_nothing_ends(encoding: str, data: bytes) -> None:
    body = fed(encoding, data, 4_096)
    assert (body.data, body.flag) == (b"", Flag.TRUNCATED)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress", "x" * 10_000])
def test_an_encoding_that_nobody_asked_for_is_not_read(encoding: str) -> None:
    body = Body(encoding, KEPT, FED)
    assert not body.wants
    body.feed(b"x")
    body.end()
    assert (body.data, body.flag) == (b"", Flag.ENCODING_UNKNOWN)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", b"<html>not compressed at all"),
        ("gzip", gzip.compress(b"hello" * 100)[:-10]),
        ("gzip", gzip.compress(b"hello")[:-4] + b"\0\0\0\0"),
        ("deflate", zlib.compress(b"hello")[:-1]),
        ("deflate", b"\x78\x9cnot compressed"),
        ("deflate", b"x"),
    ],
    ids=["plain", "cut", "checksum", "cut zlib", "plain zlib", "one byte"],
)
def test_what_does_not_make_sense_is_flagged(encoding: str, data: bytes) -> None:
    assert fed(encoding, data).flag is Flag.ENCODING_BROKEN


def test_a_body_that_stops_is_incomplete() -> None:
    body = Body("", KEPT, FED)
    body.feed(b"half")
    body.stop()
    assert (body.data, body.flag) == (b"half", Flag.INCOMPLETE)


@settings(deadline=None)  # a busy machine is no fault
@given(st.sampled_from(["gzip", "deflate", ""]), st.binary(max_size=3_000), st.integers(1, 500))
def test_any_bytes_are_survived(encoding: str, data: bytes, step: int) -> None:
    assert len(fed(encoding, data, step).data) <= KEPT
