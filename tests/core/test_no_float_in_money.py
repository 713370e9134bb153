"""No double comes near money: the code that touches it is read, file by file (PRICED-33)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pyoco_server
from support.syntax import parsed

SOURCE = Path(pyoco_server.__file__).parent

#: The money path. Folders whole, so that a new file is covered from its first line on.
PLACES = [
    "core/priced/money.py",
    "core/priced/journal.py",
    "core/states/priced.py",
    "core/priced/run.py",
    "core/packs/prices.py",
    "ports/ledger/**/*.py",
    "ports/budget/**/*.py",
    "actions/priced/**/*.py",
]
#: Types that hold doubles, ours and the database's, and division by another name.
FORBIDDEN = {"float", "Float", "FLOAT", "Double", "DOUBLE", "DOUBLE_PRECISION", "REAL", "fsum", "fdiv", "truediv"}

FILES = sorted({path for place in PLACES for path in SOURCE.glob(place)})


def doubles_in(source: str) -> list[str]:
    """Where a double is written, named or made by division: one line each."""
    found = []
    for node in ast.walk(parsed(source)):
        trouble = None
        if isinstance(node, ast.Constant) and isinstance(node.value, float | complex):
            trouble = "a literal"
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            trouble = "a division"
        elif isinstance(node, ast.Name | ast.Attribute | ast.alias):
            name = (
                node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else node.name
            )
            trouble = name if name.rpartition(".")[2] in FORBIDDEN else None
        if trouble:
            found.append(f"line {getattr(node, 'lineno', '?')}: {trouble}")
    return found


@pytest.mark.parametrize("place", PLACES)
def test_every_place_of_the_money_path_is_there(place: str) -> None:
    """PRICED-33: a folder that was renamed must not leave the check."""
    assert list(SOURCE.glob(place))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_there_is_no_double_on_the_money_path(path: Path) -> None:
    """PRICED-33"""
    assert doubles_in(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "planted",
    [
        "charge = float(text)",
        "charge: float = 0",
        "def settle(charge: int | float) -> None: ...",
        "def settle() -> 'list[int]': return list(map(float, ()))",
        "fee = reserved * 0.02",
        "fee = 1e6",
        "fee = -0.0",
        "fee = reserved / 50",
        "fee /= 50",
        "fee = 2j",
        "import operator\nfee = operator.truediv(reserved, 50)",
        "from operator import truediv",
        "from sqlalchemy import Float",
        "column = sa.Column('balance', sa.REAL)",
        "is_money = isinstance(value, float)",
    ],
)
def test_a_planted_double_is_found(planted: str) -> None:
    """PRICED-33: the check itself."""
    assert doubles_in("import sqlalchemy as sa\n" + planted)


@pytest.mark.parametrize(
    "clean",
    [
        "fee = reserved // 50",
        "fee = min(max(5_000, reserved // 50), 100_000)",
        "text = '0.0500'",
        "'''Half of 1.0 / 2 is a float.'''",
        "whole, rest = divmod(reserved, 100)",
        "share //= 50",
    ],
)
def test_whole_numbers_and_texts_are_not(clean: str) -> None:
    """PRICED-33: the check itself."""
    assert doubles_in(clean) == []
