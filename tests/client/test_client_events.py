"""The decoder of server-sent events: bytes in, events out, wherever they are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.client.events import EventDecoder, EventTooLarge, ServerEvent

Events = list[ServerEvent]


def decode(*pieces: bytes) -> Events:
    decoder = EventDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: x\n\n", [ServerEvent("message", "x", None)]),
        (b"id: 7\nevent: snapshot\ndata: x\n\n", [ServerEvent("snapshot", "x", "7")]),
        (b"data:x\n\ndata:  x\n\n", [ServerEvent("message", "x", None), ServerEvent("message", " x", None)]),
        (b"data: a\ndata: b\ndata\n\n", [ServerEvent("message", "a\nb\n", None)]),
        (b"id: 1\ndata: a\n\ndata: b\n\n", [ServerEvent("message", "a", "1"), ServerEvent("message", "b", "1")]),
        (b"id: 1\ndata: a\n\nid\ndata: b\n\n", [ServerEvent("message", "a", "1"), ServerEvent("message", "b", "")]),
        (b"id: 1\0\ndata: a\n\n", [ServerEvent("message", "a", None)]),
        (b"event: x\n\ndata: a\n\n", [ServerEvent("message", "a", None)]),
        (b": comment\ndata: a\nother: b\n\n", [ServerEvent("message", "a", None)]),
        (b"\xef\xbb\xbfdata: a\n\n", [ServerEvent("message", "a", None)]),
        (b"data: a\xff\n\n", [ServerEvent("message", "a\ufffd", None)]),
        (b"data: a\r\rdata: b\r\n\r\n", [ServerEvent("message", "a", None), ServerEvent("message", "b", None)]),
        (b"data: not ended\n", []),
        (b"", []),
    ],
)
def test_a_stream_means_what_the_standard_says(data: bytes, events: Events) -> None:
    """FLOW-121: however it is cut"""
    assert decode(data) == events
    assert decode(*(data[at : at + 1] for at in range(len(data)))) == events


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"", b"data: x", b"data", b"id: 3", b"event: heartbeat", b": c", b"retry: 5", b"data: \xc3\xbc"]
        ),
        st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b"")),
    ),
    max_size=20,
)


@given(
    lines=LINES, ends=st.lists(st.sampled_from([b"\n", b"\r", b"\r\n"]), min_size=1), cuts=st.sets(st.integers(0, 300))
)
def test_where_it_is_cut_makes_no_difference(lines: list[bytes], ends: list[bytes], cuts: set[int]) -> None:
    data = b"".join(line + ends[at % len(ends)] for at, line in enumerate(lines))
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    assert decode(*(data[start:end] for start, end in itertools.pairwise(places))) == decode(data)


@given(lines=LINES)
def test_how_lines_end_makes_no_difference(lines: list[bytes]) -> None:
    assert decode(*(line + b"\r\n" for line in lines)) == decode(b"\n".join([*lines, b""]))


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_nonsense_is_no_crash(pieces: list[bytes]) -> None:
    for event in decode(*pieces):
        assert event.data is not None


def feed_often(piece: bytes) -> None:
    decoder = EventDecoder(bytes_max=100)
    for _ in range(1000):
        list(decoder.feed(piece))


@pytest.mark.parametrize("piece", [b"x" * 7, b"data: xx\n", b"data\n"])
def test_a_line_or_an_event_without_end_is_refused(piece: bytes) -> None:
    with pytest.raises(EventTooLarge):
        feed_often(piece)


@pytest.mark.parametrize("endless", [b"data: " + b"x" * 200, b"x" * 200, b"data: " + b"x" * 200 + b"\n\n"])
def test_what_came_before_a_line_without_end_counts(endless: bytes) -> None:
    """Also when both came at once"""
    events = EventDecoder(bytes_max=100).feed(b"id: 1\ndata: a\n\ndata: b\n\n" + endless)
    assert [next(events).data, next(events).data] == ["a", "b"]
    with pytest.raises(EventTooLarge):
        next(events)


def test_comments_without_end_cost_nothing() -> None:
    feed_often(b": still here\n")


def test_what_is_within_the_limit_passes_again_and_again() -> None:
    decoder = EventDecoder(bytes_max=100)
    for _ in range(50):
        assert len(list(decoder.feed(b"data: " + b"x" * 90 + b"\n\n"))) == 1


def test_a_long_line_in_many_pieces_is_joined_once() -> None:
    """Ten megabytes in pieces of a hundred bytes: joined at each piece it would take minutes"""
    decoder = EventDecoder()
    assert list(decoder.feed(b"data: ")) == []
    for _ in range(100_000):
        assert list(decoder.feed(b"x" * 100)) == []
    [event] = decoder.feed(b"\n\n")
    assert len(event.data) == 10_000_000


@pytest.mark.parametrize(
    ("line", "seconds"),
    [(b"retry: 1500\n", 1.5), (b"retry: x\n", None), (b"retry: -1\n", None), (b"retry:" + b"9" * 20 + b"\n", None)],
)
def test_the_server_may_say_when_to_come_back(line: bytes, seconds: float | None) -> None:
    decoder = EventDecoder()
    assert list(decoder.feed(line)) == []
    assert decoder.retry_seconds == seconds
