"""Writes the synchronous client from the asynchronous one: `python tools/make_sync_client.py`.

A test fails when a file is stale. Word by word: `async` and `await` go, names that differ are swapped. Whatever needs
more than that has a place of its own in `io_async.py` and `io_sync.py`, under the same name in both.
"""
# ruff: noqa: INP001  (a script, not a package)

from __future__ import annotations

import io
import subprocess
import sys
import tokenize
from pathlib import Path

__all__ = ["twins"]

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "src" / "pyoco_server" / "client"
#: What is written by hand, and what is made of it.
FILES = {
    "aio.py": "sync.py",
    "aio_jobs.py": "sync_jobs.py",
    "aio_outputs.py": "sync_outputs.py",
    "aio_priced.py": "sync_priced.py",
    "aio_schedules.py": "sync_schedules.py",
    "aio_wire.py": "sync_wire.py",
}
_MARK = "# Generated from {}: python tools/make_sync_client.py\n"

_WORDS = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncJobs": "Jobs",
    "AsyncOutputs": "Outputs",
    "AsyncPricedRuns": "PricedRuns",
    "AsyncPyocoHttpClient": "PyocoHttpClient",
    "AsyncSchedules": "Schedules",
    "AsyncWire": "Wire",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aclosing": "closing",
    "aio_jobs": "sync_jobs",
    "aio_outputs": "sync_outputs",
    "aio_priced": "sync_priced",
    "aio_schedules": "sync_schedules",
    "aio_wire": "sync_wire",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
    "io_async": "io_sync",
}
#: Inside of strings.
_PHRASES = {
    "Every operation of the HTTP API, for asyncio. The synchronous twin, `sync.py`, is made from this file.": (
        "Every operation of the HTTP API, for programs without an event loop."
    ),
    "Priced runs and budgets, for asyncio. The synchronous twin, `sync_priced.py`, is made from this file.": (
        "Priced runs and budgets, for programs without an event loop."
    ),
    "Programs and their jobs, for asyncio. The synchronous twin, `sync_jobs.py`, is made from this file.": (
        "Programs and their jobs, for programs without an event loop."
    ),
    "Results and outputs of runs, for asyncio. The synchronous twin, `sync_outputs.py`, is made from this file.": (
        "Results and outputs of runs, for programs without an event loop."
    ),
    "Schedules, for asyncio. The synchronous twin, `sync_schedules.py`, is made from this file.": (
        "Schedules, for programs without an event loop."
    ),
    "A client of one gateway, for asyncio.": "A client of one gateway.",
    "async with": "with",
    '(await client.wait_run(run["run_id"]))["status"]': 'client.wait_run(run["run_id"])["status"]',
    "await client": "client",
    "AsyncJobs": "Jobs",
    "AsyncOutputs": "Outputs",
    "AsyncPricedRuns": "PricedRuns",
    "AsyncPyocoHttpClient": "PyocoHttpClient",
    "AsyncSchedules": "Schedules",
    "AsyncWire": "Wire",
}


def twins() -> dict[Path, str]:
    """Every generated file, and its text."""
    made = {
        CLIENT / name: _MARK.format(source) + _twin((CLIENT / source).read_text()) for source, name in FILES.items()
    }
    return {path: _formatted(text, path) for path, text in made.items()}


def _twin(text: str) -> str:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    parts: list[str] = []
    done = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        new = _word(token)
        if new is None:
            continue
        begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        parts += [text[done:begin], new]
        done = end if new else end + 1  # the space behind it goes, too
    return "".join([*parts, text[done:]])


def _word(token: tokenize.TokenInfo) -> str | None:
    """What stands there instead; None: the same."""
    if token.type == tokenize.NAME:
        return "" if token.string in {"async", "await"} else _WORDS.get(token.string)
    if token.type == tokenize.STRING:
        said = token.string
        for old, new in _PHRASES.items():
            said = said.replace(old, new)
        return said if said != token.string else None
    return None


def _formatted(text: str, path: Path) -> str:
    """As `ruff` would have it: imports in order, and `yield from` where only an event loop needs more."""
    for words in ("check --select I,RUF022,UP028 --fix --unsafe-fixes", "format"):
        ruff = [str(Path(sys.executable).with_name("ruff")), *words.split(), "--quiet", "--no-cache"]
        command = [*ruff, "--stdin-filename", str(path), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return text


def main() -> None:
    for path, text in twins().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
