"""The `batch` command: submit many runs from a file, up to a thousand per request."""

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

#: The limits of the route for one request, with room for the JSON around the lines.
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

    Prints one JSON line per submission: its run_id, or its error. A refused submission does not stop the others, but
    the exit code is 1. If a line of the file is not a JSON object, nothing is submitted. stdin is submitted while it is
    read: lines before an invalid one may already have been submitted, and their counts are printed.

    With --idempotency-key each line is accepted once, however often the same file is sent.
    """
    with _opened(file) as (lines, total), calling(asked) as client, counting("submitted", total) as advance:
        accepted, refused = _submit(client, _submissions(lines, file, idempotency_key), advance)
    note(f"accepted: {accepted}, refused: {refused}")
    return 1 if refused else 0


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open the file and count its submissions. None: unknown, because it is a stream.

    A file is read completely before anything is sent, so that an invalid line does not leave it half submitted.
    """
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
    """Yield each submission with its index from 0 and its size. Skips empty lines. Raises UsageError."""
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
    """Return the idempotency key of a line: always the same for the same line, and never longer than a key may be."""
    full_key = f"{key}.{index}"
    if len(full_key) <= KEY_LENGTH_MAX:
        return full_key
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
    """Renumber one line of a response, and the locations of its errors, by its position in the complete file."""
    index = first + item["index"]
    error: dict[str, Any] = {**item.get("error", {})}
    for name in ("detail", "errors"):
        if isinstance(error.get(name), list):
            error[name] = [{**problem, "loc": ["body", "runs", index, *problem["loc"][3:]]} for problem in error[name]]
    return {**item, "index": index, **({"error": error} if error else {})}


def _portions(lines: Iterator[Line]) -> Iterator[tuple[int, list[RunBatchItem]]]:
    """Yield as many submissions as one request may hold, with the index of the first."""
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
