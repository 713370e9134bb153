"""The input and output of every answerer."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ANSWER_LENGTH_MAX", "Ask", "DocumentAnswer"]

#: The maximum length of an answer, in characters, for every answerer.
ANSWER_LENGTH_MAX = 20_000


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A question. The context is untrusted text: it is treated as data only."""

    question: str
    #: Empty: no context.
    context: str = ""
    #: Whether the long answer is wanted instead of the short one.
    is_full: bool = False


@dataclass(frozen=True, kw_only=True)
class DocumentAnswer:
    """One answer, and its reliability."""

    text: str
    #: 0 to 1, with four decimals at most. None: the answerer gave none.
    confidence: float | None
    #: Tokens used by a model; 0 without one.
    tokens_consumed: int = 0
