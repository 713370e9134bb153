"""Move the fragments of changelog.d into CHANGELOG.md: `python tools/release_changelog.py 0.6.0 2026-11-19`.

Breaking changes come first; the rest is grouped by kind. The fragments are deleted.
"""
# ruff: noqa: INP001  (a script, not a package)

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["main", "section"]

ROOT = Path(__file__).parents[1]
BREAKING = "**Breaking:** "
TITLES = {"security": "Security", "feature": "New", "change": "Changed", "fix": "Fixed", "removal": "Removed"}
_TOP = re.compile(r"^## .*\(not released yet\)\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def section(version: str, date: str, fragments: Mapping[str, str]) -> str:
    """The section of one version. `fragments`: sentence by file name, `<number>.<kind>[.…].md`."""
    by_title: dict[str, list[str]] = {"Breaking": [], **{title: [] for title in TITLES.values()}}
    for name, text in sorted(fragments.items(), key=lambda item: _order(item[0])):
        title = "Breaking" if text.startswith(BREAKING) else TITLES[name.split(".")[1]]
        by_title[title].append(f"- {text.removeprefix(BREAKING).strip()}")
    parts = [f"### {title}\n\n" + "\n".join(lines) for title, lines in by_title.items() if lines]
    return f"## {version} ({date})\n\n" + "\n\n".join(parts) + "\n"


def _order(name: str) -> tuple[int, str]:
    number, _, rest = name.partition(".")
    return int(number), rest


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    folder, page = ROOT / "changelog.d", ROOT / "CHANGELOG.md"
    files = [path for path in folder.glob("*.md") if path.name != "README.md"]
    released = section(*arguments, {path.name: path.read_text(encoding="utf-8") for path in files})
    text = page.read_text(encoding="utf-8")
    page.write_text(_TOP.sub(lambda _: released, text, count=1), encoding="utf-8")
    for path in files:
        path.unlink()
    sys.stdout.write(f"{len(files)} fragments are in {page.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
