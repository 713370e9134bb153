"""The `decision` pack, without a model: it says so, and costs what a decision costs (PRICED-134)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco_server.core.packs.decision import DECISION_COST_USD_MICROS, MODES
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.executors.packs.port import Context

__all__ = ["execute"]

_ANSWER = "Undecided: no model is attached to this pack, so nothing speaks for one answer more than for another."
_FULL = (
    " The question has {question} characters and the context has {context}; both were read, and neither was judged."
    " The same inputs always get this same answer."
)


def execute(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
    """The same inputs give the same answer. Nothing of them is repeated in it."""
    answer = _ANSWER
    if inputs.get("mode", MODES[0]) == "full":
        answer += _FULL.format(question=len(inputs["question"]), context=len(inputs.get("context", "")))
    return PackResult(data={"answer_text": answer, "confidence": 0.0}, actual_cost_usd_micros=DECISION_COST_USD_MICROS)
