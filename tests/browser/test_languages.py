"""The language of the page: the server's word, and the reader's."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from support.browsers import panels_of
from support.stacks import Stack


def test_the_reader_changes_the_language_without_losing_the_place(page: Page) -> None:
    """FLOW-253, FLOW-256"""
    page.goto("/#/workers")
    menu = page.locator("nav.menu")
    expect(page.locator("html")).to_have_attribute("lang", "en")
    english = menu.inner_text()
    page.get_by_role("button", name="日本語").click()
    expect(page.locator("html")).to_have_attribute("lang", "ja")
    expect(menu).to_contain_text("メトリクス")
    assert page.url.endswith("#/workers")
    page.reload()
    expect(page.locator("html")).to_have_attribute("lang", "ja")
    page.get_by_role("button", name="English").click()
    expect(menu).to_have_text(english.replace("\n", ""))
    assert page.evaluate("localStorage.getItem('pyoco.language')") is None


def test_the_server_chooses_and_the_browser_plays_no_part(
    stack: Stack, fresh_stack: Callable[..., Stack], new_page: Callable[..., Page]
) -> None:
    """FLOW-254, FLOW-256: the one that all tests share was told to speak English."""
    japanese = fresh_stack("--no-worker", "--no-keeper", dashboard_lang="ja", priced_enabled=0)
    for server, lang, word, locale in ((japanese, "ja", "メトリクス", "en-US"), (stack, "en", "Metrics", "ja-JP")):
        page = new_page(server, locale=locale)
        page.goto("/")
        expect(page.locator("html"), lang).to_have_attribute("lang", lang)
        expect(page.locator("nav.menu"), lang).to_contain_text(word)
        assert f'<html lang="{lang}"' in server.ask("GET", "/").text, lang


def test_no_panel_shows_a_key_or_a_hole_in_either_language(stack: Stack, page: Page) -> None:
    """FLOW-253: a key of a dictionary, `{name}`, `undefined`, `NaN` or `[object Object]` on the page is a defect."""
    stack.until_status(stack.submit("charge_cards"), "FAILED")
    page.goto("/")
    for language in ("en", "ja"):
        page.evaluate("(lang) => localStorage.setItem('pyoco.language', lang)", language)
        page.reload()
        for panel in panels_of(page):
            page.goto(f"/#/{panel}")
            expect(page.locator("main h1").first).to_be_visible()
            shown = page.locator("body").inner_text()
            for hole in ("undefined", "NaN", "[object", "Invalid Date", f"{panel}."):
                assert hole not in shown, f"{hole} on {panel} in {language}"
