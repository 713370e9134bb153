"""Formats the findings of the doctor, for people and for programs."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from pyoco_server.core.diagnosis import Finding, Level, worst

__all__ = ["as_document", "say"]

_COLOURS = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.DANGER: "bold red"}
_MARGIN = 29


def as_document(findings: Sequence[Finding], nats_url: str, now: float) -> dict[str, Any]:
    """Return the findings for programs. Ids and members keep their meaning; texts may change."""
    return {
        "ok": worst(findings) is not Level.DANGER,
        "level": str(worst(findings)),
        "checked_at": now,
        "nats_url": nats_url,
        "counts": {str(level): count for level, count in _counts(findings).items()},
        "findings": [
            {
                "id": finding.check,
                "level": str(finding.level),
                "about": finding.about or None,
                "what": finding.what,
                "why": finding.why or None,
                "fix": finding.fix or None,
            }
            for finding in findings
        ],
    }


def say(findings: Sequence[Finding]) -> None:
    """Print the findings for people, the worst last, next to the prompt. One line for each if stdout is not a
    terminal."""
    ordered = sorted(findings, key=lambda finding: finding.level.rank)
    if sys.stdout.isatty():
        _show(ordered)
    else:
        for finding in ordered:
            click.echo(_line(finding))
    click.echo(_summary(findings))


def _counts(findings: Sequence[Finding]) -> dict[Level, int]:
    counted = Counter(finding.level for finding in findings)
    return {level: counted[level] for level in Level}


def _line(finding: Finding) -> str:
    parts = [f"{finding.level:<8} {finding.check:<19} {finding.what}", finding.why]
    line = "; ".join(part for part in parts if part)
    return _clean(f"{line}; FIX: {finding.fix}" if finding.fix else line)


def _show(findings: Sequence[Finding]) -> None:
    from rich.console import Console  # only on a terminal
    from rich.text import Text

    console = Console(highlight=False)
    width = max(40, console.width - _MARGIN)
    for finding in findings:
        first, *more = textwrap.wrap(_clean(finding.what), width) or [""]
        lines = [*more, *textwrap.wrap(_clean(finding.why), width)]
        head = Text.assemble((f"{finding.level:<8}", _COLOURS[finding.level]), f" {finding.check:<19} {first}")
        console.print(head, soft_wrap=True)
        for line in lines:
            console.print(Text(f"{'':{_MARGIN}}{line}"), soft_wrap=True)
        if finding.fix:  # in one piece, so that it can be copied
            console.print(Text.assemble(" " * _MARGIN, ("FIX: ", "bold"), _clean(finding.fix)), soft_wrap=True)


def _summary(findings: Sequence[Finding]) -> str:
    counts = _counts(findings)
    words = {Level.DANGER: "danger", Level.WARNING: "warning", Level.NOTE: "note"}
    found = ", ".join(f"{word}: {counts[level]}" for level, word in words.items() if counts[level])
    verdict = {
        Level.DANGER: "data may be lost or work may stop",
        Level.WARNING: "nothing is lost or blocked yet",
    }.get(worst(findings), "all is well")
    return f"\n{verdict} ({found + '; ' if found else ''}ok: {counts[Level.OK]})"


def _clean(text: str) -> str:
    """Replace unprintable characters: names and errors come from elsewhere and must not control the terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)
