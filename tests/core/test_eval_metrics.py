"""Metrics over cases: what passes, what the score is, and what a submission may ask."""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.judging.cases import METRICS, normalized, score_text
from pyoco_server.core.packs import PACKS
from pyoco_server.core.packs.spec import Here

HERE = Here(tenant_id="acme", input_bucket="dpp-inputs")


@pytest.mark.parametrize(
    ("expected", "actual", "passing"),
    [
        ("yes", "yes", {"EXACT", "NORMALIZED", "CONTAINS"}),
        ("yes", "YES", {"NORMALIZED"}),
        ("yes", "yes, we do", {"CONTAINS"}),
        ("yes, we do", "yes", set()),
        ("two words", "\u3000two\u00a0\n words\u2028", {"NORMALIZED"}),
        ("a b", "ab", set()),
        ("Straße", "STRASSE", {"NORMALIZED"}),
        ("", "", {"EXACT", "NORMALIZED", "CONTAINS"}),
        ("", " \n", {"NORMALIZED", "CONTAINS"}),
        ("", "anything", {"CONTAINS"}),
        ("1", "1.0", {"CONTAINS"}),
        ("a\x00b", "a\x00b", {"EXACT", "NORMALIZED", "CONTAINS"}),
        ("日本", "日本語", {"CONTAINS"}),
    ],
)
def test_a_case_passes_by_its_metric(expected: str, actual: str, passing: set[str]) -> None:
    """PRICED-151"""
    assert {name for name, passes in METRICS.items() if passes(expected, actual)} == passing


@given(text=st.text(max_size=60), more=st.text(max_size=20))
def test_the_metrics_hold_together(text: str, more: str) -> None:
    """PRICED-151"""
    assert normalized(normalized(text)) == normalized(text)
    assert METRICS["EXACT"](text, text)
    assert METRICS["NORMALIZED"](text, f" \t{text}\u3000")
    assert METRICS["CONTAINS"](text, more + text + more)
    if METRICS["EXACT"](text, more):
        assert all(passes(text, more) for passes in METRICS.values())


@pytest.mark.parametrize(
    ("passed", "total", "score"),
    [(0, 1, "0.0000"), (1, 1, "1.0000"), (1, 3, "0.3333"), (2, 3, "0.6666"), (999, 1000, "0.9990"), (1, 7, "0.1428")],
)
def test_the_score_is_rounded_down(passed: int, total: int, score: str) -> None:
    """PRICED-151"""
    assert score_text(passed, total) == score


@given(st.integers(1, 1_000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_score_is_the_exact_quotient_cut_off(counted: tuple[int, int]) -> None:
    """PRICED-151: all passed, and only then, is 1.0000"""
    passed, total = counted
    with localcontext(prec=60):
        exact = (Decimal(passed) / Decimal(total)).quantize(Decimal("0.0001"), ROUND_DOWN)
    assert score_text(passed, total) == str(exact)
    assert (score_text(passed, total) == "1.0000") == (passed == total)


# ---- What may be asked ----


def case(**changes: Any) -> dict[str, Any]:
    return {"id": "c", "expected": "e", "actual": "a"} | changes


def problems(inputs: object) -> list[tuple[tuple[str | int, ...], str]]:
    return [(problem.loc, problem.type) for problem in PACKS["eval"].check(inputs, HERE)]


@pytest.mark.parametrize("metric", ["EXACT", "NORMALIZED", "CONTAINS"])
def test_cases_may_be_judged(metric: str) -> None:
    """PRICED-129"""
    assert problems({"metric": metric, "cases": [case(expected="", actual="")]}) == []
    assert problems({"metric": metric, "cases": [case(id=str(number)) for number in range(1_000)]}) == []


@pytest.mark.parametrize(
    ("inputs", "place", "kind"),
    [
        ({"cases": [case()]}, ("metric",), "missing"),
        ({"metric": "exact", "cases": [case()]}, ("metric",), "value"),
        ({"metric": None, "cases": [case()]}, ("metric",), "value"),
        ({"metric": "EXACT"}, ("cases",), "missing"),
        ({"metric": "EXACT", "cases": []}, ("cases",), "length"),
        ({"metric": "EXACT", "cases": [case(id=str(number)) for number in range(1_001)]}, ("cases",), "length"),
        ({"metric": "EXACT", "cases": [case(), case(id="d"), case()]}, ("cases", 2, "id"), "repeated"),
        ({"metric": "EXACT", "cases": [case(id="")]}, ("cases", 0, "id"), "length"),
        ({"metric": "EXACT", "cases": [case(id=7)]}, ("cases", 0, "id"), "type"),
        ({"metric": "EXACT", "cases": [case(expected=1)]}, ("cases", 0, "expected"), "type"),
        ({"metric": "EXACT", "cases": [case(actual=None)]}, ("cases", 0, "actual"), "type"),
        ({"metric": "EXACT", "cases": [{"id": "c", "expected": "e"}]}, ("cases", 0, "actual"), "missing"),
        ({"metric": "EXACT", "cases": [case(weight=1)]}, ("cases", 0), "unknown"),
        ({"metric": "EXACT", "cases": [case()], "threshold": 1}, (), "unknown"),
        (None, (), "type"),
    ],
)
def test_cases_may_not_be_judged(inputs: Any, place: tuple[str | int, ...], kind: str) -> None:
    """PRICED-129"""
    assert problems(inputs) == [(place, kind)]
