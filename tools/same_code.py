"""Show that a change of prose changes no code: `python tools/same_code.py BASE [PATH …]`.

Compares the syntax trees of all Python files between the commit BASE and the working tree, without docstrings, comments
and the messages of log calls. Prints each file that differs beyond those, and exits with 1 if there is one.
"""
# ruff: noqa: INP001  (a script, not a package)

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["code_of", "main"]

LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def code_of(source: str) -> str:
    """The syntax tree as text, without docstrings and log messages."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        prose = _prose_of(node)
        if isinstance(prose, ast.Constant) and isinstance(prose.value, str):
            prose.value = ""
    return ast.dump(tree)


def _prose_of(node: ast.AST) -> ast.expr | None:
    """The docstring of a definition, or the message of a log call."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        first = node.body[0] if node.body else None
        return first.value if isinstance(first, ast.Expr) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG_METHODS:
        return node.args[0] if node.args else None
    return None


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout  # noqa: S603, S607 - git, with our own arguments


def _changed(base: str, paths: list[str]) -> Iterator[tuple[str, str]]:
    """Status letter and path of each Python file that differs from `base`."""
    for line in _git("diff", "--name-status", "--no-renames", base, "--", *paths).splitlines():
        status, path = line.split("\t")
        if path.endswith(".py"):
            yield status, path


def main(arguments: list[str]) -> int:
    if not arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    base, paths = arguments[0], arguments[1:]
    compared, different = 0, []
    for status, path in _changed(base, paths):
        compared += 1
        if status != "M":
            different.append(f"{path} was {'added' if status == 'A' else 'removed'}")
        elif code_of(_git("show", f"{base}:{path}")) != code_of(Path(path).read_text(encoding="utf-8")):
            different.append(path)
    for each in different:
        sys.stdout.write(f"{each}\n")
    sys.stdout.write(f"{compared} files changed, {len(different)} of them in more than prose\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
