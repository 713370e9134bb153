"""Does what a page says, line by line, and compares what it shows with what comes back.

A reader puts in the ids of their own answers; so does this one. Where the page shows `8bb08e75-…` and something else
came back, that is what `8bb08e75-171c-…` stands for in the commands below. Numbers and digests may differ, `…` stands
for anything, white space for nothing; everything else has to be as it is shown.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from support.documented import Step
from support.warm_processes import begun

__all__ = ["Reader", "Untrue", "learned_from"]

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
#: What a page shows that need not be the same, most special first.
_TOKEN = re.compile(
    r"""(?P<uuid>[0-9a-f]{8}-(?:[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|…))
       | (?P<key>\bpyoco_[0-9a-f]{16}_…)
       | (?P<fixed>ERR-PYOCO-\d{4}|MSG-PYOCO-\d{4}|HTTP/1\.1\ \d{3}|HTTP\ \d{3}|"status_code":\ ?\d{3})
       | (?P<cut>[\w=+-]{4,}…)
       | (?P<any>…)
       | (?P<digest>\b[0-9a-f]{16,}\b)
       | (?P<number>\d+(?:\.\d+)*(?:e[-+]?\d+)?)""",
    re.VERBOSE,
)
#: Asked again until the answer is the one shown: the work behind it takes a moment.
_ASKS = re.compile(
    r"\bcurl -sN? '?http|pyoco-(client|grid) (get|list|why|watch|dlq (list|counts)|price get|budget|state)\b"
)
_STARTS = re.compile(r"(^|\s)(pyoco-worker [-\w]+:|pyoco-worker --|pyoco-grid (leader|worker|nworker) )")
_COMMAND = re.compile(r"(?<!\S)pyoco-(worker|grid)(?=\s)")
#: What the shell would start, with which variables and where.
_PRINT_COMMAND = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"
#: Never run, listed or not: it would change the machine.
_FOREIGN = re.compile(r"\b(sudo|systemctl|useradd|apt-get|docker)\b|\bpip install\b")
#: The file that an answer goes to.
_SAVES = re.compile(r"\bcurl\b[^|;]*?\s-(?:\w*o\s+(?P<named>\S+)|\w*OJ?\s[^|;]*/(?P<last>[^/\s'?]+))")
_PATIENCE_SECONDS = 80.0
#: In the log of a process that has started.
_HAS_STARTED = re.compile(r"the worker works|worker started")
_START_SECONDS = 120.0
_COMMAND_SECONDS = 180


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _pattern_of(shown: str) -> tuple[re.Pattern[str], list[str]]:
    """What an answer must look like, and the words of the page that its groups say the meaning of."""
    words: list[str] = []
    parts: list[str] = []
    at = 0
    for found in _TOKEN.finditer(shown):
        parts.append(re.escape(_squeezed(shown[at : found.start()])))
        at = found.end()
        kind, word = str(found.lastgroup), found[0]
        named = {"uuid": word[:8], "key": word[:-1], "cut": word}.get(kind)
        if named in words:
            parts.append(rf"(?:{_UUID}|[\w=+./-]+)" if kind != "uuid" else rf"(?:{_UUID})")
            continue
        if named is not None:
            words.append(named)
        parts.append(
            {
                "uuid": f"({_UUID})",
                "key": r"(pyoco_[0-9a-f]{16}_[\w-]+)",
                "fixed": re.escape(_squeezed(word)),
                "cut": r"([\w=+./-]+?)",
                "any": r".*?",
                "digest": r"[0-9a-f]+",
                "number": r"[\d.]+(?:e[-+]?\d+)?",
            }[kind]
        )
    parts.append(re.escape(_squeezed(shown[at:])))
    return re.compile("".join(parts), re.DOTALL), words


def learned_from(shown: str, answer: str) -> dict[str, str] | None:
    """What words of the page stand for. None: the answer is not the one shown."""
    pattern, words = _pattern_of(shown)
    found = pattern.fullmatch(_squeezed(answer))
    return dict(zip(words, found.groups(), strict=True)) if found else None


class Untrue(AssertionError):
    """The page says something else than what happens."""


@dataclass
class Reader:
    """One reader of one page, in a folder of their own, with a shell that remembers variables and where it is."""

    folder: Path
    environment: dict[str, str]
    #: What the page says, and what it is here: addresses first of all.
    meanings: dict[str, str]
    #: The newest API key: what `pyoco_…` stands for.
    _last_key: str = ""
    #: What the shell knows beforehand: see `warm_commands`.
    functions: str = ""
    _learned: dict[str, str] = field(default_factory=dict)
    _last_run: str = ""
    #: By command line: the process and its log.
    _started: dict[str, tuple[subprocess.Popen[Any], Path]] = field(default_factory=dict)

    def does(self, step: Step, *, is_compared: bool = True, typed: str | None = None) -> None:
        """Raises Untrue when it ends otherwise than the page says. With `typed` it is done on a terminal, where that is
        typed in."""
        text = self._meant(step.text)
        if _FOREIGN.search(text):
            raise Untrue(f"{step.place}\nis not for this machine: list it among what is not run")
        if typed is not None:
            text = f"printf %s {shlex.quote(typed)} | script --quiet --return --command {shlex.quote(text)} /dev/null"
        if step.kind == "file":
            self._write(str(step.block.file), text)
        elif step.kind == "program":
            self._write("program.py", text)
            self._asks("python program.py", Step(step.block, "program", text))
        elif step.kind == "command" and _STARTS.search(text):
            self._starts(text)
        else:
            self._asks(text, step, is_compared=is_compared)

    def ends(self) -> list[str]:
        """Stops what the page has started. Gives what had ended by itself, which nothing should."""
        over = [
            f"it ended by itself: {text}\n{log.read_text(errors='replace')[-2000:]}"
            for text, (process, log) in self._started.items()
            if not self._is_running(process, log)
        ]
        for text in [*self._started]:
            self._stop(text)
        return over

    def _is_running(self, process: subprocess.Popen[Any], log: Path) -> bool:
        """Waits until the process has started or ended."""
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and not _HAS_STARTED.search(log.read_text(errors="replace")):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return process.poll() is None

    def _stop(self, text: str) -> None:
        process, _ = self._started.pop(text)
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)

    def _write(self, name: str, text: str) -> None:
        path = Path(name.replace("~", self.environment["HOME"], 1)) if name.startswith("~") else self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _meant(self, text: str) -> str:
        """A line of the page with what its names stand for here."""
        for said, meant in self.meanings.items():
            text = text.replace(said, meant)
        text = re.sub(_UUID, lambda found: self._learned.get(found[0][:8], found[0]), text)
        text = re.sub(
            r"pyoco_[0-9a-f]{16}_…|pyoco_…", lambda found: self._learned.get(found[0][:-1], self._last_key), text
        )
        text = re.sub(r"\bRUN_ID\b", self._last_run, text)
        for said, meant in self._learned.items():
            if said.startswith("pyoco_"):
                text = re.sub(rf"\b{said.split('_')[1]}\b", meant.split("_")[1], text)
            elif said.endswith("…"):
                text = text.replace(said, meant)
        return text

    def _starts(self, text: str) -> None:
        """A process that goes on until the page ends, or until the page starts it again."""
        if text in self._started:
            self._stop(text)
        log = self.folder / f"started-{uuid4().hex}.log"
        prints = f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(_PRINT_COMMAND)} "
        prepared = subprocess.run(
            ["bash", "-c", f"{self._prologue()}; exec env {_COMMAND.sub(lambda found: prints + found[0], text, 1)}"],
            capture_output=True,
            cwd=self.folder,
            env=self.environment,
            timeout=_COMMAND_SECONDS,
            check=True,
        )
        (name, *words), environment, folder = json.loads(prepared.stdout)
        with log.open("wb") as output:
            process = begun(
                [shutil.which(name, path=environment["PATH"]) or name, *words],
                env=environment,
                cwd=folder,
                stdout=output,
                stderr=output,
            )
        self._started[text] = process, log

    def _prologue(self) -> str:
        return "[ ! -e .state ] || . ./.state"

    def _asks(self, text: str, step: Step, *, is_compared: bool = True) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        shown = self._seen(step.shown) if is_compared else ""
        while True:
            code, answer, said = self.runs(text, is_script=step.kind == "script")
            answer += self._saved_refusals(text)
            trouble = self._trouble(code, answer, said, shown)
            if trouble is None:
                return
            if not _ASKS.search(text) or time.monotonic() > deadline:
                came = f"--- came back ({code})\n{answer[-3000:]}{said[-3000:]}"
                raise Untrue(f"{step.place}\n{trouble}\n--- shown\n{shown}\n{came}")
            time.sleep(0.1)

    def _saved_refusals(self, text: str) -> str:
        """What a reader would find in place of the file that they asked for."""
        paths = [self.folder / (found["named"] or found["last"]) for found in _SAVES.finditer(text)]
        held = [path.read_bytes() for path in paths if path.is_file()]
        return "".join(each.decode() for each in held if each.startswith(b"{") and b'"err_id"' in each)

    def _seen(self, shown: str) -> str:
        for said, meant in self.meanings.items():
            shown = shown.replace(said, meant)
        return shown

    def _trouble(self, code: int, answer: str, said: str, shown: str) -> str | None:
        refused = re.search(r"ERR-PYOCO|\b(4\d\d|5\d\d)\b", shown) is not None
        if code != 0 and not refused:
            return f"it ended with {code}"
        if re.search(r'"err_id"|urn:dpp:problem', answer) and not refused and "reason_code" not in shown:
            return "it was refused"
        if shown:
            tried = (learned_from(shown, each) for each in (answer, said, answer + said))
            learned = next((each for each in tried if each is not None), None)
            if learned is None:
                return "something else came back"
            self._learned |= {word: meant for word, meant in learned.items() if word not in self._learned}
        if found := re.findall(rf'"run_id": ?"({_UUID})"', answer):
            self._last_run = found[-1]
        if key := re.search(r"pyoco_[0-9a-f]{16}_[\w-]+", answer):
            self._last_key = key[0]
        return None

    def runs(self, text: str, *, is_script: bool = False) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a line in the reader's shell. A script ends at the first line that fails."""
        keep = r"""keep() { { export -p; printf 'cd %q\n' "$PWD"; } > "$SESSION"; }; trap keep EXIT"""
        script = f"{self.functions}\n{self._prologue()}\n{keep}\n{'set -eo pipefail' if is_script else ''}\n{text}\n"
        try:
            ended = subprocess.run(
                ["bash", "-c", script],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=self.folder,
                env={**self.environment, "SESSION": str(self.folder / ".state")},
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Untrue(f"{text}\ndoes not end; it is not listed as something that stays") from error
        out = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\^D\x08*", "", ended.stdout.decode(errors="replace"))
        return ended.returncode, out, ended.stderr.decode(errors="replace")
