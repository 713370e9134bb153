"""A question in, an answer out: what every answerer is asked, and what it says."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ANSWER_LENGTH_MAX", "Answer", "Ask"]

#: No answer has more characters, whoever gave it.
ANSWER_LENGTH_MAX = 20_000


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is to be answered. The context is somebody's text: data, whatever it says."""

    question: str
    #: Empty: there is none.
    context: str = ""
    #: The long answer is wanted, and not the short one.
    is_full: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer, and how far it can be relied on."""

    text: str
    #: 0 to 1, with four decimals at most. None: who answered did not say.
    confidence: float | None
    #: Of a model; 0 where there is none.
    tokens_consumed: int = 0
