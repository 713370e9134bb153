"""The tesseract command: one process per reading, with limits on its time and on its output."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Final

from pyoco_server.core.ocr.merging import with_language
from pyoco_server.core.ocr.page import Box, Raster, TextLine, TextWord, bounds
from pyoco_server.ports.ocr.port import EngineAbsent, EngineFailed, LanguageMissing, OutOfTime

__all__ = ["Tesseract", "read_tsv"]

#: Its page segmentation modes. 6 for blocks: 3 drops complete lines of Korean and Japanese (measured).
_PSM: Final = {"line": 7, "block": 6, "automatic": 3, "sparse": 11}
#: A page full of text yields some hundred kilobytes.
_OUTPUT_BYTES_MAX: Final = 16 * 1024 * 1024
_CHUNK: Final = 1 << 16
_ASK_SECONDS: Final = 20.0
#: Tesseract's names for codes that are ambiguous with three letters.
_ALIASES: Final = {"chi": "chi_sim", "zho": "chi_sim"}
#: Each is read separately: in combination with Latin-script languages, one Korean word in ten comes out as Latin
#: letters with high confidence (measured; a combined reading saves no time either).
_BY_THEMSELVES: Final = frozenset({"kor", "jpn", "chi_sim", "chi_tra"})
#: Data files that are not languages.
_NO_LANGUAGES: Final = frozenset({"osd", "equ", "snum"})
_VERSION = re.compile(rb"tesseract v?([0-9][0-9A-Za-z.+-]{0,30})")
#: The number of columns in its table; the last one is the word.
_COLUMNS: Final = 12
_LINE_LEVEL, _WORD_LEVEL = "4", "5"


class Tesseract:
    """Its processes stay in our process group, so they end with us, however we end."""

    name = "tesseract"

    def __init__(self, command: str | None = None, *, ask_seconds: float = _ASK_SECONDS) -> None:
        """Get version and languages from the command, each within `ask_seconds`. Raises EngineFailed."""
        self._command = command or shutil.which("tesseract") or "tesseract"
        found = _VERSION.search(self._run(["--version"], None, ask_seconds))
        self.version = found[1].decode() if found else "unknown"
        self._ask_seconds = ask_seconds
        self.languages = self._listed()

    def _listed(self) -> tuple[str, ...]:
        """Return the installed languages, plus our own aliases. Raises EngineFailed."""
        listed = self._run(["--list-langs"], None, self._ask_seconds).decode("utf-8", "replace").split("\n")[1:]
        installed = {line.strip() for line in listed} - _NO_LANGUAGES - {""}
        return tuple(sorted(installed | {alias for alias, name in _ALIASES.items() if name in installed}))

    def check(self, languages: Sequence[str]) -> None:
        if not set(languages) <= set(self.languages):
            self.languages = self._listed()  # language data may have been installed since
        missing = [_ALIASES.get(code, code) for code in languages if code not in self.languages]
        if missing:
            packages = " ".join(f"tesseract-ocr-{name.replace('_', '-')}" for name in missing)
            raise LanguageMissing(
                f"tesseract has no data for {', '.join(missing)} on this worker (apt-get install {packages})"
            )

    def read(self, raster: Raster, mode: str, languages: Sequence[str], seconds: float) -> list[TextLine]:
        deadline = time.monotonic() + seconds
        lines: list[TextLine] = []
        with tempfile.TemporaryFile() as page:
            page.write(b"P5 %d %d 255\n" % (raster.width, raster.height))
            page.write(raster.gray)
            for codes in _groups(languages):
                page.seek(0)
                command = ["stdin", "stdout", "-l", codes, "--psm", str(_PSM[mode]), "--dpi", "300"]
                left = deadline - time.monotonic()
                written = self._run([*command, "-c", "tessedit_create_tsv=1"], page, left)
                lines = with_language(lines, read_tsv(written.decode("utf-8", "replace")))
        return lines

    def _run(self, arguments: Sequence[str], stdin: IO[bytes] | None, seconds: float) -> bytes:
        """Run the command, and return its stdout. The process never outlives this call."""
        # One thread: the machine runs other work too, and tesseract's threads mostly wait for each other.
        environment = {**os.environ, "OMP_THREAD_LIMIT": "1", "LC_ALL": "C.UTF-8"}
        deadline = time.monotonic() + seconds
        try:
            process = subprocess.Popen(  # noqa: S603  (arguments are our constants; language codes are validated)
                [self._command, *arguments],
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
            )
        except OSError as error:
            raise EngineAbsent(f"tesseract cannot be started: {error.strerror}") from error
        with process:
            try:
                assert process.stdout is not None
                written = _read_all(process.stdout, deadline)
                status = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise OutOfTime("tesseract did not end in time") from error
            finally:
                process.kill()  # no effect on an ended process
        if status:
            raise EngineFailed(f"tesseract ended with status {status}")
        return written


def _groups(languages: Sequence[str]) -> list[str]:
    """Group the languages into separate readings, in the order in which they were named."""
    names = [_ALIASES.get(code, code) for code in languages]
    together = "+".join(name for name in names if name not in _BY_THEMSELVES)
    return list(dict.fromkeys(name if name in _BY_THEMSELVES else together for name in names))


def _read_all(pipe: IO[bytes], deadline: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise OutOfTime("tesseract did not answer in time")
        part = pipe.read(_CHUNK)
        if not part:
            return b"".join(parts)
        size += len(part)
        if size > _OUTPUT_BYTES_MAX:
            raise EngineFailed("tesseract said more about a page than a page can hold")
        parts.append(part)


@dataclass
class _Open:
    box: Box
    words: list[TextWord]


def read_tsv(text: str) -> list[TextLine]:
    """Parse its table. Raises EngineFailed if the output is not such a table."""
    lines: list[_Open] = []
    for number, row in enumerate(text.split("\n")):
        cells = row.rstrip("\r").split("\t", _COLUMNS - 1)
        if number == 0 or len(cells) < _COLUMNS - 1 or cells[0] not in {_LINE_LEVEL, _WORD_LEVEL}:
            continue
        try:
            left, top, width, height = (int(cell) for cell in cells[6:10])
            confidence = float(cells[10]) / 100
        except ValueError as error:
            raise EngineFailed("tesseract answered in a form that is not known") from error
        box = Box(left, top, left + width, top + height)
        if cells[0] == _LINE_LEVEL:
            lines.append(_Open(box, []))
        elif lines and len(cells) == _COLUMNS and cells[11].strip():  # blank: a picture or a rule, detected by its ink
            lines[-1].words.append(TextWord(cells[11].strip(), min(1.0, max(0.0, confidence)), box))
    return [_closed(line) for line in lines if line.words]


def _closed(line: _Open) -> TextLine:
    """Use the line's own box: a word that extends beyond it is misplaced, and does not enlarge the line."""
    box = line.box if line.box.width > 0 and line.box.height > 0 else bounds(word.box for word in line.words)
    return TextLine(tuple(line.words), box)
