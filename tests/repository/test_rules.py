"""No rule of the contracts loses its last test."""

from __future__ import annotations

from pathlib import Path

from support.rule_ids import (
    named_rule_ids,
    read_record,
    rule_ids_in,
    sort_key,
    suite_rule_ids,
    suite_text,
    update_record,
)

#: Rules that only long tests name.
ONLY_THOROUGH: set[str] = set()


def test_every_recorded_rule_is_still_named_by_a_test() -> None:
    """A rule without a test is no longer checked. Restore the test, or its rule id in the test that replaced it."""
    missing = set(read_record()) - named_rule_ids()
    assert sorted(missing, key=sort_key) == []


def test_every_recorded_rule_is_named_by_a_test_of_the_suite() -> None:
    """A rule that only `make thorough` checks can be broken for a day. List it only if its test cannot be shortened."""
    assert set(read_record()) - suite_rule_ids() == ONLY_THOROUGH


def test_ids_of_long_tests_are_left_out() -> None:
    tests = Path(__file__).parents[1]
    text = suite_text(tests / "system" / "test_up.py")
    assert "def test_a_second_signal_does_not_wait_for_anything" not in text
    assert "def test_the_first_printed_address_is_the_dashboards" in text
    assert suite_text(tests / "system" / "test_chaos_nats.py") == ""


def test_the_record_is_sorted_and_has_no_duplicates() -> None:
    record = read_record()
    assert record == sorted(set(record), key=sort_key)
    assert record


def test_rule_ids_are_found_in_text_and_error_ids_are_not() -> None:
    flow, program = f"FLOW-{7}", f"GRID-{19}"  # put together here, so that this file names no rule
    assert rule_ids_in(f'"""{flow}, {program}: see ERR-PYOCO-0003 and SHA-256"""') == {flow, program}


def test_an_update_adds_ids_and_removes_none(tmp_path: Path) -> None:
    record = tmp_path / "rule_ids.txt"
    first, second, third = (f"FLOW-{number}" for number in (2, 10, 11))
    assert update_record([second, first], record) == [first, second]
    assert update_record([third], record) == [third]
    assert read_record(record) == [first, second, third]
