"""The documentation as a site: built as `make site` does, and read in a browser that has no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page, expect

from support.browsers import Watched, open_browser
from support.documented import ROOT


def build(root: Path, into: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    built = build(ROOT, into)
    assert built.returncode == 0, built.stdout + built.stderr
    return into


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    for name in ("docs", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml"):
        shutil.copy(path, tmp_path)
    for folder in ("changelog.d", "examples", "src"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.write("\n[a](tutorial.md#nowhere) [b](guides/nosuch.md)\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert "#nowhere" in built.stderr
    assert "nosuch.md" in built.stderr


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Each address that a page would fetch by itself is a file of the site. Links may lead out; ours do not."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for address in re.findall(r'<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)="([^"]+)"', text):
            parts = urlsplit(address)
            assert not parts.netloc, f"{page}: {address}"
            if parts.scheme != "data" and page.name != "404.html":
                assert (page.parent / unquote(parts.path)).exists(), f"{page}: {address}"


def test_every_page_is_in_the_menu_and_blocks_are_blocks(site: Path) -> None:
    front = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        name = re.sub(r"README\.html$", "index.html", name)
        assert f'href="{name}"' in front, name
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", (site / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "```" not in text, name


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with open_browser() as browser:
        yield Watched(browser)


def found(page: Page, words: str) -> None:
    """Search, and wait for the first result."""
    field = page.get_by_role("textbox", name="Search")
    field.click()
    expect(page.locator(".md-search-result__meta")).to_have_text("Type to start searching")
    field.press_sequentially(words)
    field.press("End")  # letters that no key makes come without a key, and it is keys that search
    expect(page.locator(".md-search-result__item").first).to_be_visible()


@pytest.mark.timeout(300)  # a busy machine draws slowly
def test_it_is_read_from_its_folder_in_the_dark_on_a_phone_and_in_japanese(site: Path, watched: Watched) -> None:
    """No server, no network."""
    address = site.as_uri()
    page = watched.new_page(address, offline=True)
    page.goto(f"{address}/index.html")
    expect(page.get_by_role("heading", name="pyoco-server", level=1)).to_be_visible()
    found(page, "idempotency")
    page.goto(f"{address}/ja/quickstart.html")
    assert page.locator("html").get_attribute("lang") == "ja"
    found(page, "値段")
    expect(page.locator(".md-search-result__item").filter(has_text="値段").first).to_be_visible()
    phone = watched.new_page(address, offline=True, viewport={"width": 390, "height": 800}, color_scheme="dark")
    for name in ("reference/settings", "ja/quickstart", "guarantees"):
        phone.goto(f"{address}/{name}.html")
        assert phone.locator("body").get_attribute("data-md-color-scheme") == "slate"
        assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    assert [each for each in watched.requested if not each.startswith(("file:", "data:"))] == []
    assert watched.settle() == []
