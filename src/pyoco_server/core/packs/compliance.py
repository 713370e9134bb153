"""`compliance`: a text, and the rules it must satisfy (contract 14.6)."""

from __future__ import annotations

from typing import Any, Final

from pyoco_server.core.judging.rules import MAX_LENGTH, MUST_CONTAIN, MUST_NOT_CONTAIN
from pyoco_server.core.packs.many import many
from pyoco_server.core.packs.spec import Member, Members, PackSpec, choice, flag, text, whole
from pyoco_server.errors import Problem

__all__ = ["COMPLIANCE", "RULES_MAX", "TEXT_LENGTH_MAX"]

TEXT_LENGTH_MAX: Final = 100_000
RULES_MAX: Final = 100
RULE_ID_LENGTH_MAX: Final = 64
#: Larger than the length of any text, so that a rule may have a limit that never applies.
LENGTH_MAX: Final = 2**53 - 1

_value_text = text(1, TEXT_LENGTH_MAX)
_value_length = whole(0, LENGTH_MAX)


def _anything(_: Any, __: tuple[str | int, ...]) -> tuple[Problem, ...]:
    return ()


_form = Members(
    {
        "id": Member(text(1, RULE_ID_LENGTH_MAX), is_required=True),
        "kind": Member(choice((MUST_CONTAIN, MUST_NOT_CONTAIN, MAX_LENGTH)), is_required=True),
        "value": Member(_anything, is_required=True),
        "case_sensitive": Member(flag),
    }
)


def _rule(value: Any, loc: tuple[str | int, ...]) -> tuple[Problem, ...]:
    """Check a rule. The kind determines the form of the value; without a valid kind, the value is not checked."""
    problems = _form(value, loc)
    if not isinstance(value, dict) or "value" not in value:
        return problems
    place = (*loc, "value")
    if value.get("kind") == MAX_LENGTH:
        return problems + _value_length(value["value"], place)
    if value.get("kind") in (MUST_CONTAIN, MUST_NOT_CONTAIN):
        return problems + _value_text(value["value"], place)
    return problems


COMPLIANCE: Final = PackSpec(
    name="compliance",
    has_own_process=False,
    inputs=Members(
        {
            "text": Member(text(1, TEXT_LENGTH_MAX), is_required=True),
            "rules": Member(many(_rule, 1, RULES_MAX), is_required=True),
        }
    ),
    price=lambda _, prices: prices.compliance.of(1),
)
