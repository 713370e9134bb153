"""Subjects, patterns and the table that finds them."""

from __future__ import annotations

import pytest

from pyoco_server.ports.nats.memory.messages import Messages, instant
from pyoco_server.ports.nats.memory.subjects import SubjectTable, covers, matches, overlaps


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "ab.c", False),
        ("*.b.>", "a.b.c", True),
        ("*.b.>", "a.b", False),
        (">", "a", True),
        ("*", "a.b", False),
    ],
)
def test_patterns_match_as_in_nats(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected
    table: SubjectTable[int, str] = SubjectTable()
    table.add(pattern, 1, "found")
    assert table.has(subject) is expected
    assert list(table.find(subject)) == ([(1, "found")] if expected else [])
    table.remove(pattern, 1)
    assert not table.has(subject)


def test_patterns_are_compared() -> None:
    assert overlaps("a.*", "*.b")
    assert not overlaps("a.*", "a.b.c")
    assert overlaps("a.>", "a.b.c")
    assert covers("a.>", "a.*")
    assert covers("a.*", "a.b")
    assert not covers("a.b", "a.*")
    assert not covers("a.*", "a.>")
    assert not covers("a.>", "a")


def test_messages_are_found_while_others_are_removed() -> None:
    messages = Messages()
    for number in range(400):
        messages.append(f"s.{number % 3}", b"", b"", number)
    seen = []
    for message in messages.since(50, "s.1"):
        seen.append(message.seq)
        for seq in range(message.seq, message.seq + 3):
            messages.remove(seq)
    assert seen == list(range(50, 401, 3))
    assert messages.count("s.1") == 16
    last = messages.last("s.*")
    assert last is not None
    assert (last.seq, messages.first_seq, len(messages)) == (49, 1, 49)
    assert messages.gaps() == list(range(50, 401))


def test_instants_have_nanoseconds() -> None:
    assert instant(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456789Z"
    assert instant(1_700_000_000_120_000_000) == "2023-11-14T22:13:20.12Z"
    assert instant(1_700_000_000_000_000_000) == "2023-11-14T22:13:20Z"
