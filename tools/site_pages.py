"""What the site does to pages that are written for the repository: a hook of the builder, see mkdocs.yml.

A link is followed as the repository has it. What lies outside of docs/ comes along: the pages of the root as pages,
other files as they are.
"""

from __future__ import annotations

# ruff: noqa: INP001  (a script, not a package)
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["on_config", "on_files", "on_page_markdown", "on_post_page"]

ROOT = Path(__file__).parents[1]
#: Pages of the root, and where the site has them.
PROJECT = {f"{name}.md": f"project/{name}.md" for name in ("SECURITY", "CONTRIBUTING", "CHANGELOG")}
PROJECT["changelog.d/README.md"] = "project/changelog-fragments.md"
_SOURCES = {target: source for source, target in PROJECT.items()}
_FENCED = re.compile(r"(^```.*?^```[ \t]*$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
#: A remark behind the language is for the tests; the builder would take the block for text.
_REMARK = re.compile(r"^(```\w+) .*$", re.MULTILINE)
#: Drawn by a script from elsewhere, so not here: the tables below each say the same.
_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A folder in the menu stands for all of its pages that the menu does not name, by their file names."""
    named = set(_named(config.nav))

    def fill(entry: object) -> list[object]:
        if isinstance(entry, dict):
            return [{name: _flat(fill(each)) for name, each in entry.items()}]
        if isinstance(entry, list):
            return [each for part in entry for each in fill(part)]
        if isinstance(entry, str) and entry.endswith("/"):
            return [page for page in _pages_of(entry) if page not in named]
        return [entry]

    config.nav = fill(config.nav)
    return config


def _named(entry: object) -> list[str]:
    if isinstance(entry, dict):
        return _named([*entry.values()])
    return [name for each in entry for name in _named(each)] if isinstance(entry, list) else [str(entry)]


def _flat(filled: list[object]) -> object:
    """A title of one page is followed by the page itself."""
    return filled[0] if len(filled) == 1 and isinstance(filled[0], str) else filled


def _pages_of(folder: str) -> list[str]:
    return sorted(f"{folder}{path.name}" for path in (ROOT / "docs" / folder).glob("*.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, target in PROJECT.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    for page in [*files.documentation_pages()]:
        for path in _outside(page):
            if files.get_file_from_path(f"project/{path}") is None:
                files.append(File.generated(config, f"project/{path}", content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    parts = _FENCED.split(_REMARK.sub(r"\1", _DIAGRAM.sub("", markdown)))
    parts[::2] = [
        _LINK.sub(lambda found: found[1] + _moved(page.file, found[2]) + found[3], text) for text in parts[::2]
    ]
    return "".join(parts)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """A page below ja/ says that it is Japanese: browsers choose letters and line breaks by that."""
    return output.replace('<html lang="en"', '<html lang="ja"', 1) if page.file.src_uri.startswith("ja/") else output


def _place(file: File) -> str:
    """Where a page lies in the repository."""
    return _SOURCES.get(file.src_uri, f"docs/{file.src_uri}")


def _target(file: File, link: str) -> str | None:
    """The path in the repository that a link means. None: it leaves the repository, or stays on its page."""
    path = link.partition("#")[0]
    if not path or re.match(r"[a-z]+:", link):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(_place(file)), path))


def _moved(file: File, link: str) -> str:
    target = _target(file, link)
    if target is None:
        return link
    there = _in_site(target)
    _, mark, anchor = link.partition("#")
    return posixpath.relpath(there, posixpath.dirname(file.src_uri) or ".") + mark + anchor


def _in_site(path: str) -> str:
    if path in PROJECT:
        return PROJECT[path]
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        return f"{path.removeprefix('docs/')}/README.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"project/{path}"


def _outside(page: File) -> set[str]:
    """The files that a page links to, other than pages."""
    text = "".join(_FENCED.split(page.content_string)[::2])
    targets = {_target(page, found[2]) for found in _LINK.finditer(text)}
    return {
        path
        for path in targets
        if path and not path.startswith("docs/") and path not in {*PROJECT, "README.md"} and (ROOT / path).is_file()
    }
