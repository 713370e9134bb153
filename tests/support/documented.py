"""The pages of the repository, and the fenced blocks in them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BLOCKS", "PAGES", "ROOT", "Block", "Step", "steps_of", "with_info"]

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "changelog.d").glob("*.md")])
#: What the last line of a paragraph calls the block below it: "in `my_flows.py`:".
_NAMED = re.compile(r"`([~\w./-]+\.(?:py|toml|ya?ml|jsonl|txt|sh))`[^`]*[:：]$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    #: The words behind the fence: a language, perhaps a remark.
    info: str
    text: str
    #: The file that the text before it says it is.
    file: str | None = None

    @property
    def name(self) -> str:
        """Its page, as the tables of tests call it."""
        return str(self.page.relative_to(ROOT))

    def __str__(self) -> str:
        return f"{self.name}:{self.line}"


def _blocks_of(page: Path) -> Iterator[Block]:
    """Those within a list are indented as far as their fence: what they hold is what a reader sees."""
    begun: tuple[int, str] | None = None
    lines: list[str] = []
    before = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = line.lstrip()
        if not fence.startswith("```"):
            lines.append(line)
            if begun is None:
                before = line or before
        elif begun is None:
            begun, lines = (number, fence[3:].strip()), []
        else:
            named = _NAMED.search(before)
            text = "\n".join(lines) + "\n"
            is_indented = line.startswith(" ")
            yield Block(page, *begun, textwrap.dedent(text) if is_indented else text, named and named[1])
            begun, before = None, ""
    assert begun is None, f"{page}: a block begins in line {begun and begun[0]} and does not end"


BLOCKS = [block for page in PAGES for block in _blocks_of(page)]


def with_info(*infos: str) -> list[Block]:
    return [block for block in BLOCKS if block.info in infos]


@dataclass(frozen=True)
class Step:
    """One thing that a reader does: a command, a script, a program or a file to write."""

    block: Block
    #: `command`, `script`, `program` or `file`.
    kind: str
    text: str
    #: What the page says that comes back. Empty: it does not say.
    shown: str = ""

    @property
    def place(self) -> str:
        """What tables of exceptions call it: the page and how it begins."""
        return f"{self.block.name}: {self.text.splitlines()[0]}"


def steps_of(block: Block) -> list[Step]:
    """What a reader does with a block. None, if it is there to be read only."""
    language = block.info.split(" ")[0]
    if block.file is not None and language != "console":
        return [Step(block, "file", block.text)]
    if language == "console":
        return list(_commands_of(block))
    kind = {"sh": "script", "bash": "script", "python": "program"}.get(language)
    return [Step(block, kind, block.text)] if kind else []


def _commands_of(block: Block) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        end = next(number for number, line in enumerate(lines) if not line.endswith("\\\n")) + 1
        yield Step(block, "command", "".join(lines[:end]).strip(), "".join(lines[end:]).strip())
