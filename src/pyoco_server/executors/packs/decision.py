"""The `decision` pack: passes a question to an answerer. The price does not depend on the answerer (PRICED-127)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyoco_server.core.answers import extractive
from pyoco_server.core.answers.answer import Ask, DocumentAnswer
from pyoco_server.core.packs.decision import MODES
from pyoco_server.core.packs.prices import DECISION_COST_USD_MICROS
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.executors.packs.port import Context, Execute, PackError, PackUnavailable
from pyoco_server.ports.answerer.port import (
    Answerer,
    AnswererRefused,
    AnswererUnavailable,
    BadAnswer,
    NoAnswer,
    NobodyWaits,
)

__all__ = ["UNKNOWN_CONFIDENCE", "executor"]

#: Shown if a model reported no confidence. `reliability_met` is then null: unknown.
UNKNOWN_CONFIDENCE: Final = 0.5
#: Error codes shown to the owner of a run. A test compares them with the answerer's errors.
CODES: Final[dict[type[NoAnswer], str]] = {
    AnswererUnavailable: "ANSWERER_UNAVAILABLE",
    AnswererRefused: "ANSWERER_REFUSED",
    BadAnswer: "ANSWERER_BAD_ANSWER",
    NobodyWaits: "CANCELLED",
}


def executor(answerer: Answerer | None = None) -> Execute:
    """Without an answerer, sentences of the context serve as the answer: offline and deterministic."""

    def execute(inputs: Mapping[str, Any], ctx: Context) -> PackResult:
        ask = Ask(
            question=inputs["question"],
            context=inputs.get("context", ""),
            is_full=inputs.get("mode", MODES[0]) == "full",
        )
        return _result(extractive.answer(ask) if answerer is None else _asked(answerer, ask, ctx))

    return execute


def _asked(answerer: Answerer, ask: Ask, ctx: Context) -> DocumentAnswer:
    try:
        return answerer.answer(ask, ctx.seconds_left, ctx.cancelled)
    except NoAnswer as error:
        kind = PackUnavailable if error.is_operators_fault else PackError
        raise kind(CODES[type(error)], str(error)) from error


def _result(answer: DocumentAnswer) -> PackResult:
    confidence = UNKNOWN_CONFIDENCE if answer.confidence is None else answer.confidence
    return PackResult(
        data={"answer_text": answer.text, "confidence": confidence},
        actual_cost_usd_micros=DECISION_COST_USD_MICROS,
        tokens_consumed=answer.tokens_consumed,
        reliability_score=answer.confidence,
    )
