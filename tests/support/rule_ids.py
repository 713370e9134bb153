"""Which rules of the contracts the tests name.

`tests/repository/rule_ids.txt` lists every rule id that a test has ever named. After adding a test for another rule,
add its id to the file: `PYTHONPATH=tests python -m support.rule_ids`. Ids are never removed this way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from support.syntax import parsed
from support.thorough import THOROUGH, is_thorough

__all__ = [
    "RECORD",
    "TESTS",
    "named_rule_ids",
    "read_record",
    "rule_ids_in",
    "sort_key",
    "suite_rule_ids",
    "suite_text",
    "update_record",
]

TESTS = Path(__file__).parents[1]
RECORD = TESTS / "repository" / "rule_ids.txt"

#: The prefixes of the contracts for flow runs, programs and priced runs, and of the engine's rules.
_FAMILIES = "FLOW GRID PRICED ENG FIND CLI RES STRICT LOG DELAY SCHED RETRY APP HOOK OTEL ROLE AUDIT SAFE".replace(
    " ", "|"
)
_RULE_ID = re.compile(rf"\b(?:{_FAMILIES})-[0-9]+\b")


def rule_ids_in(text: str) -> set[str]:
    return set(_RULE_ID.findall(text))


def named_rule_ids(folder: Path = TESTS) -> set[str]:
    """Every rule id in a Python file below the folder: in names of tests, docstrings, comments and strings."""
    return set().union(*(rule_ids_in(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")))


def suite_rule_ids(folder: Path = TESTS) -> set[str]:
    """As `named_rule_ids`, without what only long tests name: `make test` does not run those."""
    return set().union(*(rule_ids_in(suite_text(path, folder)) for path in folder.rglob("*.py")))


def suite_text(path: Path, folder: Path = TESTS) -> str:
    """A file without its long tests. A test of which one parameter is long stays."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(folder).as_posix()
    if not THOROUGH.get(name):
        return "" if name in THOROUGH else text
    lines = text.splitlines()
    for class_name, test in _tests_in(parsed(text).body):
        if is_thorough(f"tests/{name}::{class_name}{test.name}"):
            assert test.end_lineno is not None
            lines[test.lineno - 1 : test.end_lineno] = [""] * (test.end_lineno - test.lineno + 1)
    return "\n".join(lines)


def _tests_in(
    body: Iterable[ast.stmt], class_name: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for each in body:
        if isinstance(each, ast.ClassDef):
            yield from _tests_in(each.body, f"{each.name}::")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_"):
            yield class_name, each


def sort_key(rule_id: str) -> tuple[str, int]:
    prefix, _, number = rule_id.partition("-")
    return prefix, int(number)


def read_record(record: Path = RECORD) -> list[str]:
    return record.read_text(encoding="utf-8").split() if record.exists() else []


def update_record(named: Iterable[str], record: Path = RECORD) -> list[str]:
    """Add ids to the record, keep those already there, and return the added ones. The file stays sorted, one id per
    line."""
    kept = set(read_record(record))
    added = sorted(set(named) - kept, key=sort_key)
    record.write_text("".join(f"{each}\n" for each in sorted(kept | set(added), key=sort_key)), encoding="utf-8")
    return added


if __name__ == "__main__":
    print(*update_record(named_rule_ids()), sep="\n")
