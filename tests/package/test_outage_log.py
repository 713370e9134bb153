"""Repeated failures are logged once when they begin and once when they end, with their number."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from pyoco_server.errors import NotStored, RecordUnreadable, ResourceMissing, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage, cause_of

RUN_A, RUN_B = "6f1c2b3a-0000-4000-8000-00000000000a", "6f1c2b3a-0000-4000-8000-00000000000b"


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records]


def fields(record: logging.LogRecord) -> dict[str, object]:
    return dict(vars(record)["pyoco_fields"])


def outage(clock: Clock | None = None) -> Outage:
    return Outage(get_logger("tests"), clock or Clock())


def test_equal_warnings_are_one_line_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    """CLI-2, SAFE-15"""
    caplog.set_level(logging.INFO)
    clock = Clock()
    loop = outage(clock)
    for _ in range(5):
        loop.failed("turn failed", ResourceMissing("PYOCO_WORK"))
        loop.settle()
        clock.now += 1.0
    assert lines(caplog) == [("WARNING", "turn failed")]
    loop.settle()
    assert lines(caplog) == [("WARNING", "turn failed"), ("INFO", "recovered")]
    told = fields(caplog.records[-1])
    assert told == {"reason": "PYOCO_WORK is missing in NATS", "repeats": 4, "seconds": 5.0}
    loop.failed("turn failed", ResourceMissing("PYOCO_WORK"))
    assert lines(caplog)[2:] == [("WARNING", "turn failed")], "a new outage is a new line"


def test_all_loops_of_a_process_share_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """CLI-2: it is over when the last of them works again."""
    caplog.set_level(logging.INFO)
    one, other = outage(), outage()
    for each in (one, other):
        each.failed("turn failed", NotStored("there is no connection to NATS"))
    one.worked()
    assert lines(caplog) == [("WARNING", "turn failed")]
    other.worked()
    assert lines(caplog)[1:] == [("INFO", "recovered")]


def test_another_cause_is_another_line(caplog: pytest.LogCaptureFixture) -> None:
    """CLI-2"""
    loop = outage()
    for name in ("PYOCO_WORK", "KV_pyoco_runs", "PYOCO_WORK"):
        loop.failed("turn failed", ResourceMissing(name))
    assert len(lines(caplog)) == 2


def test_a_loop_that_takes_no_turn_for_long_does_not_keep_an_outage_open(caplog: pytest.LogCaptureFixture) -> None:
    """CLI-2"""
    caplog.set_level(logging.INFO)
    clock = Clock()
    often, hourly = outage(clock), outage(clock)
    for each in (often, hourly):
        each.failed("turn failed", Unavailable("away"))
    often.worked()
    clock.now = 61.0
    often.settle()
    assert lines(caplog)[-1] == ("INFO", "recovered")


def test_a_loop_that_ends_takes_its_outage_along(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loop = outage()
    loop.failed("turn failed", Unavailable("away"))
    loop.forget()
    outage().settle()
    assert lines(caplog) == [("WARNING", "turn failed")]


def test_ids_and_numbers_do_not_make_a_cause_another_one() -> None:
    """CLI-2"""
    one, other = (NotStored(f"cannot write pyoco_runs/{run_id}: no answer in 5 s") for run_id in (RUN_A, RUN_B))
    assert cause_of(one) == cause_of(other)
    assert cause_of(one) != cause_of(NotStored("cannot write pyoco_workers/a: no answer in 5 s"))


def test_the_first_cause_counts_not_what_was_being_done() -> None:
    """CLI-2"""
    error = Unavailable("cannot look at the queue")
    error.__cause__ = ResourceMissing("PYOCO_WORK")
    assert cause_of(error) == "PYOCO_WORK"


def test_each_unreadable_record_is_one_line_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """SAFE-16"""
    loop = outage()
    for _ in range(2):
        for run_id in (RUN_A, RUN_B):
            loop.failed("a run could not be looked at", RecordUnreadable(run_id, "not JSON"))
        loop.settle()
    assert len(caplog.records) == 2
    assert all(record.exc_info is None for record in caplog.records)
