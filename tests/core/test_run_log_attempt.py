"""Lines of an attempt: cut, counted, bounded and batched."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.run_log import attempt_log
from pyoco_server.core.run_log.attempt_log import AttemptLog, Limits, Record
from pyoco_server.core.run_log.batch import Batch, Entry, decode_batch, encode_batch, encode_gap
from pyoco_server.core.run_log.cutting import cut, cut_text
from pyoco_server.core.run_log.line import Gap, Line, Stream, Why
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.core.run_log.shipment import BYTES_MAX, LINES_MAX, Shipment
from pyoco_server.errors import Corrupt

SMALL = Limits(line_bytes=256, head_bytes=1000, tail_bytes=5000)


def taken(log: AttemptLog, now: float = 9.0) -> list[Shipment]:
    found = []
    while (due := log.due_at()) is not None and due <= now and (shipment := log.take(now)) is not None:
        found.append(shipment)
    return found


def lines_of(shipments: list[Shipment], attempt: int = 1) -> list[Line]:
    assembly = Assembly()
    lines = [line for each in shipments for line in assembly.add(attempt, decode_batch(each.payload), 5.0)]
    return [*lines, *assembly.end()]


def printed(*pieces: bytes, limits: Limits = SMALL) -> list[Line]:
    log = AttemptLog(limits)
    for piece in pieces:
        log.feed(Stream.STDOUT, "t", piece, 1.0)
    log.finish(2.0)
    return lines_of(taken(log))


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo\r\n\r\n", ["one", "two", ""]),
        (b"open at the end", ["open at the end"]),
        (b"\n\n", ["", ""]),
        (b"a\0b\n", ["a\u2400b"]),
        (b"bad \xff\xfe and \xe3\x81\n", ["bad \ufffd\ufffd and \ufffd"]),
        (b"\x1b[31mred\x1b[0m\tand\x07\n", ["\x1b[31mred\x1b[0m\tand\x07"]),
        ("日本語\n".encode(), ["日本語"]),
        (b"\x85\n", ["\ufffd"]),
        ("a\u2028b\x0bc\n".encode(), ["a\u2028b\x0bc"]),
    ],
)
def test_bytes_become_lines_wherever_they_are_cut(data: bytes, texts: list[str]) -> None:
    """LOG-2, LOG-4"""
    for at in range(len(data) + 1):
        assert [line.text for line in printed(data[:at], data[at:])] == texts
    assert [line.text for line in printed(*(bytes([byte]) for byte in data))] == texts


@given(st.text(), st.integers(4, 40))
def test_a_cut_never_divides_a_character(text: str, bytes_max: int) -> None:
    """LOG-23"""
    data = text.encode("utf-8", "replace")
    kept, left_out = cut(data, bytes_max)
    assert len(kept) <= bytes_max
    assert len(kept) + left_out == len(data)
    assert kept.decode() == data.decode()[: len(kept.decode())]
    assert len(kept) > bytes_max - 4 or not left_out
    assert cut_text(data.decode(), bytes_max) == (kept.decode().replace("\0", "\u2400"), left_out)


def test_a_long_line_is_cut_whether_it_ends_or_not() -> None:
    """LOG-8, LOG-23: one of any length takes no more memory than a stored one"""
    log = AttemptLog(SMALL)
    for _ in range(1000):
        log.feed(Stream.STDOUT, None, b"x" * 1000, 1.0)
    assert sum(map(len, log._open[Stream.STDOUT, None]._parts)) < 300
    log.feed(Stream.STDOUT, None, b"y\nshort\n" + b"z" * 300 + b"\n", 1.0)
    log.finish(2.0)
    assert [(line.text, line.cut_bytes) for line in lines_of(taken(log))] == [
        ("x" * 256, 1_000_001 - 256),
        ("short", 0),
        ("z" * 256, 44),
    ]


@given(
    st.lists(st.one_of(st.text(max_size=20), st.sampled_from(['","', '"],["', "\\", "é" * 100, "x" * 300]))),
    st.integers(1, 700),
)
def test_any_lines_come_out_as_they_went_in(texts: list[str], step: int) -> None:
    """LOG-2, LOG-23: long and short ones in any order, with anything in them that JSON has to escape"""
    texts = [text.replace("\n", "").replace("\r", "") for text in texts]
    data = "".join(f"{text}\n" for text in texts).encode("utf-8", "replace")
    lines = printed(*(data[at : at + step] for at in range(0, len(data), step)), limits=Limits(line_bytes=256))
    cuts = [cut(text.encode("utf-8", "replace"), 256) for text in texts]
    assert [(line.text, line.cut_bytes) for line in lines] == [
        (kept.decode().replace("\0", "\u2400"), left_out) for kept, left_out in cuts
    ]


def test_a_batch_has_a_bounded_number_of_lines_and_so_has_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-24: an empty line costs as much as any other, to be encoded and to be kept"""
    log = AttemptLog(Limits())
    log.feed(Stream.STDOUT, None, b"\n" * 40_000, 1.0)
    log.finish(2.0)
    shipments = taken(log)
    assert [each.count for each in shipments] == [LINES_MAX, LINES_MAX, 40_000 - 2 * LINES_MAX]
    assert len(lines_of(shipments)) == 40_000
    monkeypatch.setattr(attempt_log, "_PIECES_MAX", 100)
    log = AttemptLog(Limits())
    for _ in range(1000):
        log.feed(Stream.STDOUT, None, b"\n", 1.0)
    log.finish(2.0)
    lines = lines_of(taken(log))
    assert len(lines) == 201
    assert [line.gap.lines for line in lines if line.gap is not None] == [800]


def test_streams_and_tasks_are_told_apart_though_their_bytes_are_mixed() -> None:
    """LOG-3"""
    log = AttemptLog(SMALL)
    for stream, task, data in [
        (Stream.STDOUT, "a", b"from "),
        (Stream.STDOUT, "b", b"other\n"),
        (Stream.STDERR, "a", b"error\n"),
        (Stream.STDOUT, "a", b"a\n"),
        (Stream.STDOUT, None, b"nobody\n"),
    ]:
        log.feed(stream, task, data, 1.0)
    log.record("b", Record(1.5, "ERROR", "app", "failed\nbadly", "Traceback"), 1.5)
    log.finish(2.0)
    found = lines_of(taken(log))
    assert [(line.task, line.stream, line.text) for line in found] == [
        ("b", "stdout", "other"),
        ("a", "stderr", "error"),
        ("a", "stdout", "from a"),
        (None, "stdout", "nobody"),
        ("b", "log", "failed\nbadly"),
    ]
    assert [line.seq for line in found] == [1, 2, 3, 4, 5]
    assert (found[-1].level, found[-1].logger, found[-1].exc, found[-1].ts) == ("ERROR", "app", "Traceback", 1.5)


@given(
    st.lists(st.lists(st.sampled_from([b"", b"x", b"words of a line", b"y" * 90, b"\xff" * 20]), max_size=40)),
    st.booleans(),
)
def test_the_first_and_the_last_lines_are_kept_and_the_middle_is_counted(
    chunks: list[list[bytes]], take_early: bool
) -> None:
    """LOG-9, LOG-24"""
    log, shipments, everything = AttemptLog(SMALL), list[Shipment](), list[bytes]()
    for chunk in chunks * 3:
        log.feed(Stream.STDOUT, None, b"".join(line + b"\n" for line in chunk), 1.0)
        everything += chunk
        assert log.pending_bytes <= SMALL.head_bytes + SMALL.tail_bytes + 40 * 91  # and what was read last
        if take_early:
            shipments += taken(log)
    log.finish(2.0)
    shipments += taken(log)
    lines = lines_of(shipments)
    texts = [line.decode("utf-8", "replace") for line in everything]
    kept = [line for line in lines if line.gap is None]
    missing = sum(line.gap.lines or 0 for line in lines if line.gap is not None)
    sizes = [len(text.encode()) + 1 for text in texts]
    assert [line.text for line in kept] == [texts[line.seq - 1] for line in kept]
    assert len(kept) + missing == len(texts)
    assert sum(line.gap.size or 0 for line in lines if line.gap) == sum(sizes) - sum(
        len(line.text.encode()) + 1 for line in kept
    )
    if sum(sizes) <= SMALL.head_bytes + SMALL.tail_bytes - 100:
        assert not missing
    if kept:
        assert kept[-1].seq == len(texts)
    head = 0
    for text, line in zip(texts, kept, strict=False):
        head += len(text.encode()) + 1
        if head > SMALL.head_bytes - 91:
            break
        assert line.text == text


def test_a_batch_waits_for_more_lines_and_then_comes_four_times_a_second() -> None:
    log = AttemptLog(Limits())
    assert log.due_at() is None
    log.feed(Stream.STDOUT, None, b"first\n", 100.0)
    assert log.due_at() == pytest.approx(100.05)
    assert log.take(100.05) is not None
    assert log.due_at() is None
    log.feed(Stream.STDOUT, None, b"second\n", 100.1)
    assert log.due_at() == pytest.approx(100.3)
    log.finish(100.11)
    last = log.take(100.11)
    assert last is not None
    assert (last.first, last.count, last.is_last, log.is_over) == (2, 1, True, True)


@pytest.mark.parametrize(("ts", "shown"), [(4e9, 4e9), (-5.0, -5.0), (1e300, 7.0), (float("nan"), 7.0)])
def test_a_record_with_a_time_of_its_own_is_sent_like_any_other(ts: float, shown: float) -> None:
    """LOG-5, LOG-8: with a frozen clock, a batch was due in years, and a poll of so long ended its process"""
    log = AttemptLog(SMALL)
    log.record("a", Record(ts, "ERROR", "app", "text"), 7.0)
    due = log.due_at()
    assert due is not None
    assert 7.0 <= due < 8.0
    assert lines_of(taken(log))[0].ts == shown


def test_what_printed_nothing_needs_no_batch() -> None:
    log = AttemptLog(Limits())
    log.finish(1.0)
    assert log.due_at() is None
    assert log.take(1.0) is None
    assert log.is_over


def test_a_batch_is_bounded_and_so_is_what_is_sent_of_a_flood() -> None:
    log = AttemptLog(Limits())
    for _ in range(600):
        log.feed(Stream.STDOUT, None, (b"z" * 99 + b"\n") * 400, 1.0)
    early = taken(log, now=1.0)
    assert sum(each.size for each in early) <= Limits().head_bytes + BYTES_MAX
    log.finish(2.0)
    late = taken(log)
    assert all(each.size <= BYTES_MAX + 100 for each in early + late)
    assert sum(each.size for each in late) <= Limits().head_bytes + Limits().tail_bytes
    assert [each.is_tail for each in early + late].count(True) >= 28


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not compressed",
        encode_batch(Batch(1, 0, (), (Entry(1.0, 9, -1, "x"),))),
        encode_batch(Batch(1, 0, (), (Entry(1.0, 0, 5, "x"),))),
        encode_batch(Batch(1, 0, (), (Entry(1.0, 0, -1, "x", 0, "LOUD"),))),
        encode_batch(Batch(-1, 0)),
        encode_batch(Batch(2**70, 0)),
        zlib.compress(b'{"v":1,"first":1e999,"before":0,"size":0,"last":true,"tasks":[],"lines":[]}'),
        zlib.compress(b'{"v":1,"first":1,"before":0,"size":0,"last":true,"tasks":[],"lines":[],"gap":7}'),
        *(
            zlib.compress(b'{"v":1,"first":1,"before":0,"size":0,"last":true,"tasks":["t"],"lines":[%s]}' % line)
            for line in (
                b'[1.0,0,0,"\\ud800"]',
                b'[NaN,0,0,"x"]',
                b'[1.0,"0",0,"x"]',
                b'[1.0,0,0.0,"x"]',
                b'[1.0,0,0,"x",-1]',
                b'[1.0,0,0,"x",0,"INFO",{},null]',
                b'[1.0,0,0,"x",0,"INFO","app",5]',
            )
        ),
    ],
)
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    """Workers on other machines make batches: a bad one becomes a gap (LOG-9), and never stops a reader"""
    with pytest.raises(Corrupt):
        decode_batch(data)


def test_a_batch_survives_the_store() -> None:
    entries = (Entry(1.5, 0, 0, "ü \u2400 \x1b[0m"), Entry(2.0, 2, -1, "t", 3, "INFO", "app", "exc"))
    batch = Batch(first=7, before=100, tasks=["load"], entries=list(entries), is_last=True, size=12)
    assert decode_batch(encode_batch(batch)) == batch


def batch(first: int, count: int, *, last: bool = False, before: int = 0) -> Batch:
    entries = [Entry(float(seq), 0, -1, f"line {seq}") for seq in range(first, first + count)]
    return Batch(first, before, (), entries, is_last=last, size=10 * count)


def ids(assembly: Assembly, *added: tuple[int, Batch]) -> list[object]:
    found = [line for attempt, each in added for line in assembly.add(attempt, each, 5.0)]
    return [(line.id, line.gap.why.value) if line.gap else line.id for line in found]


def test_a_batch_that_was_stored_twice_is_shown_once() -> None:
    one = batch(1, 2)
    assert ids(Assembly(), (1, one), (1, one), (1, batch(2, 2))) == [(1, 1), (1, 2), (1, 3)]


def test_gaps_stand_where_lines_are_missing_and_say_why() -> None:
    """LOG-7, LOG-9: the order is that of attempts, and each hole has its reason"""
    gap = decode_batch(encode_gap(20, 190, Gap(Why.BUFFER, 9, 90)))
    found = ids(
        Assembly(),
        (1, batch(5, 2)),
        (1, batch(9, 2, before=80)),
        (1, gap),
        (1, batch(20, 1)),
        (2, batch(1, 1, last=True)),
        (3, batch(1, 1, last=True)),
    )
    assert found == [
        ((1, 4), "retention"),
        (1, 5),
        (1, 6),
        ((1, 8), "limit"),
        (1, 9),
        (1, 10),
        ((1, 19), "buffer"),
        (1, 20),
        ((1, 21), "lost"),
        (2, 1),
        (3, 1),
    ]


def test_a_gap_is_a_line_of_its_own() -> None:
    """LOG-9"""
    assembly = Assembly()
    assert [line.document(1) for line in assembly.add(2, batch(4, 0, before=70), 5.0)] == [
        {
            "id": "2.3",
            "attempt": 2,
            "try": 1,
            "seq": 3,
            "ts": 5.0,
            "task": None,
            "stream": "system",
            "level": None,
            "logger": None,
            "text": "3 lines are missing: they were older than logs are kept, or the store of logs was full",
            "cut_bytes": 0,
            "trace_id": None,
            "span_id": None,
            "event": "gap",
            "missing_lines": 3,
            "missing_bytes": 70,
            "why": "retention",
        }
    ]
