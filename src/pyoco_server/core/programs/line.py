"""The members that a list line shows for a program run, besides those of every run."""

from __future__ import annotations

from typing import Any

from pyoco_server.core.run import Run

__all__ = ["program_line"]

_LENGTH_MAX = 64


def program_line(run: Run) -> dict[str, Any]:
    """Return the members of the line.

    Their size is limited whatever the record contains: missing or malformed values are left out.
    """
    program = run.program
    if program is None:
        return {}
    texts = {
        "job_id": program.job_id,
        "client_id": program.client_id,
        "group": program.group,
        "exec_name": program.exec_name,
        "error_code": program.error_code,
        "retry_of": program.retry_of,
    }
    numbers = {"attempt": run.attempt, "lost": program.lost, "exit_code": program.exit_code}
    line: dict[str, Any] = {name: text for name, text in texts.items() if _is_short_text(text)}
    line |= {name: number for name, number in numbers.items() if _is_number(number)}
    if isinstance(program.run_seconds, float | int):
        line["run_seconds"] = program.run_seconds
    return line


def _is_short_text(value: Any) -> bool:
    return type(value) is str and len(value) <= _LENGTH_MAX and value.isascii() and value.isprintable()


def _is_number(value: Any) -> bool:
    return type(value) is int and value.bit_length() < 64
