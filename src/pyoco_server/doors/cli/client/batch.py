"""`batch`: many runs from a file, a thousand at a time."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import note, print_line
from pyoco_server.doors.cli.client.progress import counting
from pyoco_server.doors.cli.client.submit import KEY_LENGTH_MAX, key_option
from pyoco_server.doors.cli.shell import Command
from pyoco_server.errors import UsageError

if TYPE_CHECKING:
    from pyoco_server.http_client import PyocoHttpClient, RunBatchItem, RunBatchLine

__all__ = ["batch"]

#: What the route takes at once, with room for what is around the lines.
_RUNS_MAX = 1000
_BYTES_MAX = 7 * 1024 * 1024

Line = tuple[int, "RunBatchItem", int]


@click.command(
    "batch",
    cls=Command,
    example="""\
pyoco-client batch --file runs.jsonl
pyoco-client batch --file runs.jsonl --idempotency-key nightly-2027-01-31
pyoco-client batch --file - < runs.jsonl""",
)
@arguments.named("--file", "FILE", "JSON Lines: one submission each, with flow_name, params, tag, tags; - for stdin.")
@key_option
@click.pass_obj
def batch(asked: Asked, file: str, idempotency_key: str | None) -> int:
    """Submit many runs of named flows, one for each line of a file.

    Prints a JSON line for each: its run_id, or its error. One that is refused does not stop the others; then the exit
    code is 1. Nothing is submitted when a line of the file is not a JSON object; stdin is read as it comes, so what
    stands before such a line may have been submitted by then, and is told.

    With --idempotency-key each line is accepted once, however often the same file is sent.
    """
    with _opened(file) as (lines, total), calling(asked) as client, counting("submitted", total) as advance:
        accepted, refused = _submit(client, _submissions(lines, file, idempotency_key), advance)
    note(f"accepted: {accepted}, refused: {refused}")
    return 1 if refused else 0


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """The lines, and how many submissions they are. A file is read once before: half of it would help nobody."""
    if path == "-":
        yield sys.stdin.buffer, None
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - closed below; errors of the block are not errors of opening
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    with file:
        total = None
        if file.seekable():
            total = sum(1 for _ in _submissions(file, path, None))
            file.seek(0)
        yield file, total


def _submissions(lines: Iterable[bytes], path: str, key: str | None) -> Iterator[Line]:
    """Each with its number from 0 and its size. Empty lines are passed over. Raises UsageError."""
    index = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"line {number} of {path} is not UTF-8: {error}") from error
        submission = arguments.json_object(text, f"line {number} of {path}")
        if key is not None:
            submission.setdefault("idempotency_key", _key_of_line(key, index))
        yield index, cast("RunBatchItem", submission), len(line)
        index += 1


def _key_of_line(key: str, index: int) -> str:
    """The same for the same line, and never longer than a key may be."""
    whole = f"{key}.{index}"
    if len(whole) <= KEY_LENGTH_MAX:
        return whole
    return f"{hashlib.sha256(key.encode()).hexdigest()}.{index}"


def _submit(client: PyocoHttpClient, lines: Iterator[Line], advance: Callable[[int], None]) -> tuple[int, int]:
    accepted = refused = 0
    try:
        for first, runs in _portions(lines):
            answer = client.submit_batch(runs)
            accepted, refused = accepted + answer["accepted"], refused + answer["refused"]
            for item in answer["items"]:
                print_line(_counted_from(first, item))
            advance(len(runs))
    except BaseException:
        if accepted or refused:
            note(f"before that: accepted: {accepted}, refused: {refused}")
        raise
    return accepted, refused


def _counted_from(first: int, item: RunBatchLine) -> dict[str, Any]:
    """The line of an answer, under the number of the submission in the whole file; so are the places of its errors."""
    index = first + item["index"]
    error: dict[str, Any] = {**item.get("error", {})}
    for name in ("detail", "errors"):
        if isinstance(error.get(name), list):
            error[name] = [{**problem, "loc": ["body", "runs", index, *problem["loc"][3:]]} for problem in error[name]]
    return {**item, "index": index, **({"error": error} if error else {})}


def _portions(lines: Iterator[Line]) -> Iterator[tuple[int, list[RunBatchItem]]]:
    """As many lines as one request may hold, and the number of the first."""
    held: list[RunBatchItem] = []
    first = size = 0
    for index, submission, length in lines:
        if held and (len(held) == _RUNS_MAX or size + length > _BYTES_MAX):
            yield first, held
            held, size = [], 0
        if not held:
            first = index
        held.append(submission)
        size += length
    if held:
        yield first, held
