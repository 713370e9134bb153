"""The dashboard for everybody: by keyboard, read aloud, on a phone, in the dark."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.browsers import check, panels_of
from support.stacks import ROOT, Stack

TOKENS = (ROOT / "src/pyoco_server/doors/dashboard/static/css/tokens.css").read_text()


def tokens() -> dict[str, tuple[str, str]]:
    """The colours by name: in the light scheme and in the dark one."""
    return {
        name: (light, dark)
        for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", TOKENS)
    }


def contrast(one: str, other: str) -> float:
    """By the formula of WCAG 2: from 1 (the same) to 21 (black on white)."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, brighter = sorted((light(one), light(other)))
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_ink_can_be_read_on_every_ground(scheme: int) -> None:
    """4.5:1 for text (WCAG AA)."""
    colours = {name: both[scheme] for name, both in tokens().items()}
    grounds = ["ground", "surface", "surface-2"]
    states = [name for name in colours if f"{name}-ground" in colours]
    pairs = [*product(["text", "text-dim", *states], grounds), ("text", "surface-3"), ("on-accent", "accent")]
    pairs += [(name, f"{name}-ground") for name in states] + [("text", f"{name}-ground") for name in states]
    faint = {pair: round(contrast(*(colours[name] for name in pair)), 2) for pair in pairs}
    assert {pair: found for pair, found in faint.items() if found < 4.5} == {}
    assert contrast(colours["line-strong"], colours["surface"]) >= 3, "the edge of a field (WCAG 1.4.11)"


@pytest.fixture
def full(stack: Stack) -> str:
    """Something in every panel. Gives a run that has failed."""
    run_id = stack.submit("charge_cards", {"card": "4111"})
    stack.submit("resize_images", tag="nobody-serves-this")
    stack.until_status(run_id, "FAILED")
    return run_id


def places(page: Page, run_id: str) -> list[str]:
    return [*panels_of(page), f"runs/{run_id}"]


def go(page: Page, place: str) -> None:
    """There, with what it shows."""
    page.goto(f"/#/{place}")
    expect(page.locator("main h1").first).to_be_visible()
    expect(page.locator("main .skeleton")).to_have_count(0)


def test_everything_has_a_name_and_headings_are_in_order(page: Page, full: str) -> None:
    """FLOW-247, for screen readers."""
    page.goto("/")
    for place in places(page, full):
        go(page, place)
        assert check(page, "nameless") == [], place
        levels: list[int] = check(page, "headings")
        assert levels.count(1) == 1, f"{place}: {levels}"
        assert all(after <= before + 1 for before, after in pairwise(levels)), f"{place}: {levels}"
        assert check(page, "twins") == [], place
        assert page.title().endswith("pyoco")
        current = page.locator('nav.menu [aria-current="page"]')
        expect(current).to_have_attribute("href", f"#/{place.split('/')[0]}")


def test_no_text_is_faint(page: Page, full: str) -> None:
    """4.5:1, of the colours that the browser really shows. Nor does anything move, as the reader wants it."""
    page.emulate_media(reduced_motion="reduce")
    page.goto("/")
    for place in places(page, full):
        go(page, place)
        grounds = set()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            assert check(page, "faint") == [], f"{place} in {scheme}"
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2, f"{place} is the same in the dark"
        assert check(page, "moving") == 0, place


@pytest.mark.parametrize("language", ["en", "ja"])
def test_a_phone_never_scrolls_sideways(new_page: Callable[..., Page], stack: Stack, full: str, language: str) -> None:
    """380 pixels, and every panel is all there."""
    page = new_page(stack, viewport={"width": 380, "height": 800}, has_touch=True, is_mobile=True)
    page.add_init_script(f"localStorage.setItem('pyoco.language', '{language}')")
    page.goto("/")
    for place in places(page, full):
        go(page, place)
        sizes = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert sizes[0] <= 380 and sizes[1] == 380, f"{place}: {sizes}"  # noqa: PT018


def test_what_has_the_focus_can_be_seen(page: Page, full: str) -> None:
    """By Tab through each panel: every stop has an outline or a ring, and none is a trap."""
    page.goto("/")
    for place in places(page, full):
        go(page, place)
        page.evaluate("document.activeElement?.blur()")
        stops: list[str] = []
        for _ in range(14):
            page.keyboard.press("Tab")
            if found := check(page, "focused"):
                what, is_seen = found
                stops.append(what)
                assert is_seen, f"{place}: {what}"
        assert len(set(stops)) > 6, f"{place}: the keyboard is stuck at {stops[-1:]}"


def test_the_keyboard_leads_everywhere(page: Page) -> None:
    """`g` and a letter switch pages; `?` shows the keys; Escape returns."""
    page.goto("/")
    told = "import('/static/panels.js').then((m) => m.panels.map(({ id, key }) => ({ id, key })))"
    keys: list[dict[str, Any]] = page.evaluate(told)
    assert len({each["key"] for each in keys}) == len(keys)
    for each in [*keys[1:], keys[0]]:
        page.keyboard.press("g")
        page.keyboard.press(each["key"])
        expect(page.locator("nav.menu [aria-current=page]")).to_have_attribute("href", f"#/{each['id']}")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_moving_pictures_stop_when_the_reader_wants_it(new_page: Callable[..., Page], stack: Stack) -> None:
    """`prefers-reduced-motion`"""
    run_id = stack.submit("train_model", {"scale": 0.3})
    page = new_page(stack, reduced_motion="reduce")
    go(page, f"runs/{run_id}")
    assert check(page, "moving") == 0
