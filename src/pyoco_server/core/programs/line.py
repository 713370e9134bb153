"""What a line of a list shows of a program's run beside what every line has."""

from __future__ import annotations

from typing import Any

from pyoco_server.core.run import Run

__all__ = ["program_line"]

_LENGTH_MAX = 64


def program_line(run: Run) -> dict[str, Any]:
    """Small, whatever a stranger has written: what is not known, or cannot be what it says, is left out."""
    program = run.program
    if program is None:
        return {}
    words = {
        "job_id": program.job_id,
        "client_id": program.client_id,
        "group": program.group,
        "exec_name": program.exec_name,
        "error_code": program.error_code,
        "retry_of": program.retry_of,
    }
    numbers = {"attempt": run.attempt, "lost": program.lost, "exit_code": program.exit_code}
    line: dict[str, Any] = {name: word for name, word in words.items() if _is_word(word)}
    line |= {name: number for name, number in numbers.items() if _is_number(number)}
    if isinstance(program.run_seconds, float | int):
        line["run_seconds"] = program.run_seconds
    return line


def _is_word(value: Any) -> bool:
    return type(value) is str and len(value) <= _LENGTH_MAX and value.isascii() and value.isprintable()


def _is_number(value: Any) -> bool:
    return type(value) is int and value.bit_length() < 64
