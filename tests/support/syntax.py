"""Parsing source in a process that has run other tests."""

from __future__ import annotations

import ast

from support.collection import without_garbage_collector

__all__ = ["parsed"]


def parsed(source: str) -> ast.Module:
    """`ast.parse` without the garbage collector.

    In CPython 3.11, formatting a traceback parses source as well. If a finalizer logs an exception while `ast.parse`
    builds its tree, the two share one recursion counter, and it raises "AST constructor recursion depth mismatch".
    """
    with without_garbage_collector():
        return ast.parse(source)
