"""The answer that stands in the context already: its sentence that shares most with the question.

BM25 (k1 = 1.2, b = 0.75) over the sentences of the context. What a term weighs is seen from the context: the fewer
sentences have it, the more it says. All of it is whole numbers, so that no two machines disagree in a last digit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyoco_server.core.answers.answer import Answer, Ask
from pyoco_server.core.answers.sentences import sentences
from pyoco_server.core.answers.terms import terms

__all__ = ["FULL_SENTENCES_MAX", "NO_CONTEXT", "NO_MATCH", "answer"]

#: How many sentences make a full answer.
FULL_SENTENCES_MAX: Final = 5
NO_CONTEXT: Final = "There is no context to answer from."
NO_MATCH: Final = "The context does not answer this: none of its sentences has to do with the question."

#: A light term weighs a fifth of what it would otherwise.
_LIGHT_DIVISOR: Final = 5
#: A question in the context is rarely an answer to another: it counts a quarter.
_QUESTION_DIVISOR: Final = 4
#: A full answer leaves out what scores less than a quarter of its best sentence.
_FULL_DIVISOR: Final = 4
_LOG_BITS: Final = 12
_SCORE_UNIT: Final = 1_000
_E4: Final = 10_000


@dataclass(frozen=True)
class _Ranked:
    """A sentence of the context, and what speaks for it."""

    place: int
    text: str
    #: The question's terms in it.
    shared: frozenset[str]
    score: int


def answer(ask: Ask) -> Answer:
    """The best sentence; of a full answer, up to FULL_SENTENCES_MAX of them in the order of the text, and how they were
    chosen. O(n) in question and context. The same question and context always have the same answer.

    The confidence is how much of what the question is about the best sentence has (by weight), times 0.5 to 0.9 by how
    far it is ahead of the next sentence that says something else. It is never above 0.9: shared words are no proof. It
    is 0 where nothing was found, and the text says so.
    """
    found = sentences(ask.context)
    if not found:
        return Answer(text=NO_CONTEXT, confidence=0.0)
    asked = _asked(ask.question)
    counted = [Counter(term.text for term in terms(sentence)) for sentence in found]
    weights = _weights(asked, counted)
    ranked = _ranked(found, counted, asked, weights)
    if not ranked:
        return Answer(text=NO_MATCH, confidence=0.0)
    confidence_e4 = _confidence_e4(ranked, weights, _weight_of(0, len(found)))
    text = _full(ranked, len(found), len(asked)) if ask.is_full else ranked[0].text
    return Answer(text=text, confidence=confidence_e4 / _E4)


def _asked(question: str) -> dict[str, bool]:
    """The terms of the question, and whether each of them is light wherever it stands."""
    asked: dict[str, bool] = {}
    for sentence in sentences(question):
        for term in terms(sentence):
            asked[term.text] = asked.get(term.text, True) and term.is_light
    return asked


def _weights(asked: Mapping[str, bool], counted: Sequence[Counter[str]]) -> dict[str, int]:
    having = Counter(term for count in counted for term in count if term in asked)
    return {
        term: max(1, _weight_of(having[term], len(counted)) // (_LIGHT_DIVISOR if is_light else 1))
        for term, is_light in asked.items()
    }


def _weight_of(having: int, sentences_count: int) -> int:
    """log2(1 + (N - n + 0.5) / (n + 0.5)) for a term that n of N sentences have, in units of 2^-_LOG_BITS."""
    return _log2(2 * sentences_count + 2, 2 * having + 1)


def _log2(above: int, below: int) -> int:
    """Of a fraction that is at least 1, in units of 2^-_LOG_BITS, rounded down; by squaring, without a double."""
    whole = (above // below).bit_length() - 1
    precision = 2 * _LOG_BITS
    value = (above << precision) // (below << whole)  # 1 <= value < 2, in units of 2^-precision
    result = whole
    for _ in range(_LOG_BITS):
        value = value * value >> precision
        is_two = value >> (precision + 1)
        value >>= is_two
        result = result << 1 | is_two
    return result


def _ranked(
    found: Sequence[str], counted: Sequence[Counter[str]], asked: Mapping[str, bool], weights: Mapping[str, int]
) -> list[_Ranked]:
    """The sentences that have to do with the question, the best first; of equal ones, the first in the text."""
    sizes = [count.total() for count in counted]
    whole = sum(sizes)
    has_informative = not all(asked.values())
    ranked = []
    for place, (text, count, size) in enumerate(zip(found, counted, sizes, strict=True)):
        shared = frozenset(count.keys() & asked.keys())
        # "is" and "the" alone make no answer, unless nothing else was asked.
        if not shared or (has_informative and all(asked[term] for term in shared)):
            continue
        length = 6 * whole + 18 * size * len(found)  # 1.2 * (0.25 + 0.75 * size / mean), times 20 * whole
        score = sum(
            weights[term] * _SCORE_UNIT * 44 * count[term] * whole // (20 * count[term] * whole + length)
            for term in shared
        )
        if text.rstrip("\"'”’)」』）").endswith(("?", "？", "؟")):
            score //= _QUESTION_DIVISOR
        ranked.append(_Ranked(place, text, shared, score))
    return sorted(ranked, key=lambda each: (-each.score, each.place))


def _confidence_e4(ranked: Sequence[_Ranked], weights: Mapping[str, int], one_term: int) -> int:
    best = ranked[0]
    # At least the weight of one term that says something: "Is it so?" is not answered by covering all of it.
    asked = max(_sum(weights, weights), one_term)
    following = next((each.score for each in ranked[1:] if each.text.casefold() != best.text.casefold()), 0)
    ahead_e4 = (best.score - following) * _E4 // max(1, best.score)
    return min(_E4, _sum(weights, best.shared) * (5 * _E4 + 4 * ahead_e4) // (10 * asked))


def _sum(weights: Mapping[str, int], of: Iterable[str]) -> int:
    return sum(weights[term] for term in of)


def _full(ranked: Sequence[_Ranked], sentences_count: int, terms_count: int) -> str:
    least = ranked[0].score // _FULL_DIVISOR
    chosen: dict[str, _Ranked] = {}
    for each in ranked:
        if each.score < least or len(chosen) == FULL_SENTENCES_MAX:
            break
        chosen.setdefault(each.text.casefold(), each)
    lines = [each.text for each in sorted(chosen.values(), key=lambda each: each.place)]
    how = (
        f"(Chosen by the terms they share with the question: {len(lines)} of {sentences_count} sentence(s), in the"
        f" order of the context; the best one has {len(ranked[0].shared)} of {terms_count} terms.)"
    )
    return "\n".join((*lines, "", how))
