"""`decision`: a question, optionally with context, for one answer (contract 14.3)."""

from __future__ import annotations

from typing import Final

from pyoco_server.core.packs.spec import Member, Members, PackSpec, choice, text

__all__ = ["CONTEXT_LENGTH_MAX", "DECISION", "MODES", "QUESTION_LENGTH_MAX"]

QUESTION_LENGTH_MAX: Final = 8_000
CONTEXT_LENGTH_MAX: Final = 100_000
#: The first is the default.
MODES: Final = ("brief", "full")

DECISION: Final = PackSpec(
    name="decision",
    has_own_process=False,
    inputs=Members(
        {
            "question": Member(text(1, QUESTION_LENGTH_MAX), is_required=True),
            "context": Member(text(0, CONTEXT_LENGTH_MAX)),
            "mode": Member(choice(MODES)),
        }
    ),
    price=lambda _, prices: prices.decision.of(1),
)
