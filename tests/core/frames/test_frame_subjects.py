"""Which patterns match which subjects."""

from __future__ import annotations

import pytest

from pyoco_server.core.frames.subjects import (
    ack_subject,
    assign_subject,
    can_match_assign,
    check_pattern,
    exec_of_submit,
    matches,
    result_subject,
    submit_subject,
)
from pyoco_server.core.programs.faults import Code, GridRefused

#: Each row was checked against a NATS server.
TABLE = [
    ("job.assign.calcA", "job.assign.calcA", True),
    ("job.assign.calcA", "job.assign.calcB", False),
    ("job.assign.calcA", "job.assign.CalcA", False),
    ("job.assign.*", "job.assign.calcA", True),
    ("job.assign.*", "job.assign", False),
    ("job.assign.*", "job.assign.a.b", False),
    ("job.assign.>", "job.assign.calcA", True),
    ("job.assign.>", "job.assign.a.b", True),
    ("job.assign.>", "job.assign", False),
    ("job.*.calcA", "job.assign.calcA", True),
    ("job.*.calcA", "job.submit.calcA", True),
    ("job.submit.*", "job.assign.calcA", False),
    ("*.*.*", "job.assign.calcA", True),
    ("*.*", "job.assign.calcA", False),
    (">", "job.assign.calcA", True),
    (">", "job", True),
    ("*", "job", True),
    ("*", "job.assign", False),
    ("job.*.>", "job.assign.calcA", True),
    ("job.*.>", "job.assign", False),
    ("job.assign.calc*", "job.assign.calcA", False),
    ("job.assign.c*lcA", "job.assign.calcA", False),
    ("job.assign.計算", "job.assign.計算", True),
    ("job.assign.*", "job.assign.計算", True),
]
#: A subject that is matched has no wildcards and no empty tokens; `>` counts at the end only.
NEVER = [
    ("job.>.calcA", "job.assign.calcA"),
    (">", ""),
    ("*", ""),
    ("job.*", "job."),
    ("job..x", "job..x"),
    ("job.*", "job.*"),
    ("job.>", "job.>"),
    ("job.assign.calcA.*", "job.assign.calcA"),
]


@pytest.mark.parametrize(("pattern", "subject", "expected"), TABLE)
def test_the_matcher_agrees_with_nats(pattern: str, subject: str, expected: bool) -> None:
    """GRID-28, GRID-29"""
    assert matches(pattern, subject) is expected


@pytest.mark.parametrize(("pattern", "subject"), NEVER)
def test_what_is_no_pattern_or_no_subject_does_not_match(pattern: str, subject: str) -> None:
    """GRID-28"""
    assert not matches(pattern, subject)


@pytest.mark.parametrize("pattern", ["job.assign.*", "job.assign.calcA", ">", "*", "a.*.>", "job.assign.計算"])
def test_a_legal_pattern_is_accepted(pattern: str) -> None:
    """GRID-30"""
    check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("", "token 1 is empty"),
        ("job..x", "token 2 is empty"),
        (".job", "token 1 is empty"),
        ("job.", "token 2 is empty"),
        ("job.>.x", "token 2 is '>'"),
        (">.", "token 1 is '>'"),
        ("job.assign.calc*", "token 3 is 'calc*'"),
        ("job.a>", "token 2 is 'a>'"),
        ("**", "token 1 is '**'"),
        ("job.a b", "token 2 has white space"),
        ("job.a\x07", "token 2 has white space or a control character"),
    ],
)
def test_a_pattern_that_is_none_is_refused_with_the_token_that_is_wrong(pattern: str, said: str) -> None:
    """GRID-30"""
    with pytest.raises(GridRefused) as caught:
        check_pattern(pattern)
    assert caught.value.code is Code.BAD_HELLO
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("job.assign.*", True),
        ("job.assign.calcA", True),
        ("job.assign.>", True),
        ("job.>", True),
        (">", True),
        ("*.*.*", True),
        ("*.*.>", True),
        ("*.assign.calcA", True),
        ("job.submit.*", False),
        ("job.assign", False),
        ("job.assign.a.b", False),
        ("job.assign.a.>", False),
        ("job.*", False),
        ("other.>", False),
        ("job.assign.計算", False),
        ("job.assign.-x", False),
    ],
)
def test_it_is_known_which_patterns_can_match_an_assignment(pattern: str, expected: bool) -> None:
    """GRID-30"""
    assert can_match_assign(pattern) is expected


def test_subjects_name_their_program() -> None:
    assert [make("calcA") for make in (submit_subject, assign_subject, ack_subject, result_subject)] == [
        "job.submit.calcA",
        "job.assign.calcA",
        "job.ack.calcA",
        "job.result.calcA",
    ]
    assert exec_of_submit("job.submit.calcA") == "calcA"
    assert exec_of_submit("job.assign.calcA") is None
