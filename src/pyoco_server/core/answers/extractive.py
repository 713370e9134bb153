"""Extractive answers: the sentence of the context that has most in common with the question.

BM25 (k1 = 1.2, b = 0.75) over the sentences of the context. Term weights are computed from the context: the fewer
sentences contain a term, the higher its weight. All arithmetic uses integers, so that all machines agree to the last
digit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyoco_server.core.answers.answer import Ask, DocumentAnswer
from pyoco_server.core.answers.sentences import sentences
from pyoco_server.core.answers.terms import terms

__all__ = ["FULL_SENTENCES_MAX", "NO_CONTEXT", "NO_MATCH", "answer"]

#: The maximum number of sentences in a full answer.
FULL_SENTENCES_MAX: Final = 5
NO_CONTEXT: Final = "There is no context to answer from."
NO_MATCH: Final = "The context does not answer this: none of its sentences has to do with the question."

#: A light term has a fifth of its weight.
_LIGHT_DIVISOR: Final = 5
#: A question in the context rarely answers another one: its score is divided by four.
_QUESTION_DIVISOR: Final = 4
#: A full answer omits sentences that score less than a quarter of the best one.
_FULL_DIVISOR: Final = 4
_LOG_BITS: Final = 12
_SCORE_UNIT: Final = 1_000
_E4: Final = 10_000


@dataclass(frozen=True)
class _Ranked:
    """A sentence of the context with its score."""

    place: int
    text: str
    #: The terms of the question that it contains.
    shared: frozenset[str]
    score: int


def answer(ask: Ask) -> DocumentAnswer:
    """Return the best sentence, with its confidence. A full answer has up to FULL_SENTENCES_MAX sentences in the order
    of the text, and says how they were chosen. O(n) in question and context. Deterministic.

    The confidence is the share of the question's terms (by weight) in the best sentence, times 0.5 to 0.9 depending on
    its lead over the next sentence with a different text. It is never above 0.9: shared words are no proof. It is 0 if
    nothing was found, and the text says so.
    """
    found = sentences(ask.context)
    if not found:
        return DocumentAnswer(text=NO_CONTEXT, confidence=0.0)
    asked = _asked(ask.question)
    counted = [Counter(term.text for term in terms(sentence)) for sentence in found]
    weights = _weights(asked, counted)
    ranked = _ranked(found, counted, asked, weights)
    if not ranked:
        return DocumentAnswer(text=NO_MATCH, confidence=0.0)
    confidence_e4 = _confidence_e4(ranked, weights, _weight_of(0, len(found)))
    text = _full(ranked, len(found), len(asked)) if ask.is_full else ranked[0].text
    return DocumentAnswer(text=text, confidence=confidence_e4 / _E4)


def _asked(question: str) -> dict[str, bool]:
    """Return the terms of the question, and whether each of them is light in all its occurrences."""
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
    """Return log2(1 + (N - n + 0.5) / (n + 0.5)) for a term in n of N sentences, in units of 2^-_LOG_BITS."""
    return _log2(2 * sentences_count + 2, 2 * having + 1)


def _log2(above: int, below: int) -> int:
    """Return log2 of a fraction of at least 1, in units of 2^-_LOG_BITS, rounded down; by squaring, without floating
    point."""
    integer_part = (above // below).bit_length() - 1
    precision = 2 * _LOG_BITS
    value = (above << precision) // (below << integer_part)  # 1 <= value < 2, in units of 2^-precision
    result = integer_part
    for _ in range(_LOG_BITS):
        value = value * value >> precision
        is_two = value >> (precision + 1)
        value >>= is_two
        result = result << 1 | is_two
    return result


def _ranked(
    found: Sequence[str], counted: Sequence[Counter[str]], asked: Mapping[str, bool], weights: Mapping[str, int]
) -> list[_Ranked]:
    """Return the sentences related to the question, the best first; on a tie, the one that comes first in the text."""
    sizes = [count.total() for count in counted]
    terms_total = sum(sizes)
    has_informative = not all(asked.values())
    ranked = []
    for place, (text, count, size) in enumerate(zip(found, counted, sizes, strict=True)):
        shared = frozenset(count.keys() & asked.keys())
        # Terms such as "is" and "the" alone do not make an answer, unless the question has no others.
        if not shared or (has_informative and all(asked[term] for term in shared)):
            continue
        length = 6 * terms_total + 18 * size * len(found)  # 1.2 * (0.25 + 0.75 * size / mean), times 20 * terms_total
        score = sum(
            weights[term] * _SCORE_UNIT * 44 * count[term] * terms_total // (20 * count[term] * terms_total + length)
            for term in shared
        )
        if text.rstrip("\"'”’)」』）").endswith(("?", "？", "؟")):
            score //= _QUESTION_DIVISOR
        ranked.append(_Ranked(place, text, shared, score))
    return sorted(ranked, key=lambda each: (-each.score, each.place))


def _confidence_e4(ranked: Sequence[_Ranked], weights: Mapping[str, int], one_term: int) -> int:
    best = ranked[0]
    # At least the weight of one informative term: covering all of "Is it so?" does not answer it.
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
