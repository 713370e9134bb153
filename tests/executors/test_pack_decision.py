"""The decision pack: a stub that says so."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pyoco_server.core.packs import PACKS
from pyoco_server.core.packs.decision import CONTEXT_LENGTH_MAX, QUESTION_LENGTH_MAX
from pyoco_server.executors.packs.decision import execute
from pyoco_server.executors.packs.port import Context

CONTEXT = Context(
    run_id="5b0c6f7e-5a3f-4a3c-8f0e-1c3f6c1f2a10",
    tenant_id="acme",
    trace_id=None,
    deadline=time.monotonic() + 90,
    min_reliability_score=0.8,
    artifacts={},
)


@pytest.mark.parametrize(
    "inputs",
    [
        {"question": "?"},
        {"question": "Shall we?", "mode": "brief"},
        {"question": "Shall we?", "context": "", "mode": "full"},
        {"question": "x" * QUESTION_LENGTH_MAX, "context": "y" * CONTEXT_LENGTH_MAX, "mode": "full"},
    ],
    ids=["least", "brief", "full", "longest"],
)
def test_whatever_may_be_asked_gets_the_same_answer_at_the_fixed_price(inputs: dict[str, Any]) -> None:
    """PRICED-127, PRICED-134"""
    assert PACKS["decision"].check(inputs) == ()
    result = execute(inputs, CONTEXT)
    assert result == execute(inputs, CONTEXT)
    assert set(result.data) == {"answer_text", "confidence"}
    assert isinstance(result.data["answer_text"], str)
    assert result.data["answer_text"]
    assert 0 <= result.data["confidence"] <= 1
    assert result.actual_cost_usd_micros == 50_000
    assert result.tokens_consumed == 0
    assert result.reliability_score is None


def test_nothing_that_was_asked_is_repeated() -> None:
    """PRICED-171"""
    result = execute({"question": "marker-1", "context": "marker-2", "mode": "full"}, CONTEXT)
    assert "marker" not in repr(result)


def test_the_full_answer_says_more_than_the_brief_one() -> None:
    full, brief = (execute({"question": "Shall we?", "mode": mode}, CONTEXT) for mode in ("full", "brief"))
    assert full.data["answer_text"].startswith(brief.data["answer_text"])
    assert len(full.data["answer_text"]) > len(brief.data["answer_text"])
