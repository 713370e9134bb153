"""`eval`: expected and actual values, case by case (contract 14.7)."""

from __future__ import annotations

from typing import Final

from pyoco_server.core.judging.cases import METRICS
from pyoco_server.core.packs.many import many
from pyoco_server.core.packs.spec import Member, Members, PackSpec, choice, text

__all__ = ["CASES_MAX", "EVAL"]

CASES_MAX: Final = 1_000
CASE_ID_LENGTH_MAX: Final = 128
CASE_TEXT_LENGTH_MAX: Final = 100_000

EVAL: Final = PackSpec(
    name="eval",
    has_own_process=False,
    inputs=Members(
        {
            "metric": Member(choice(tuple(METRICS)), is_required=True),
            "cases": Member(
                many(
                    Members(
                        {
                            "id": Member(text(1, CASE_ID_LENGTH_MAX), is_required=True),
                            "expected": Member(text(0, CASE_TEXT_LENGTH_MAX), is_required=True),
                            "actual": Member(text(0, CASE_TEXT_LENGTH_MAX), is_required=True),
                        }
                    ),
                    1,
                    CASES_MAX,
                ),
                is_required=True,
            ),
        }
    ),
    price=lambda inputs, prices: prices.eval.of(len(inputs["cases"])),
)
