"""The dashboard of a server that asks for API keys, and of a read-only one."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Request, expect

from support.browsers import Watched, panels_of
from support.stacks import Stack


@pytest.fixture
def key_holder(locked: Stack) -> tuple[Stack, str]:
    """A stack that asks for keys, and a key."""
    key = locked.make_key()
    locked.headers = {"X-API-Key": key}
    return locked, key


#: What the buttons that do something are called.
DEEDS = re.compile(r"^(Cancel|Cancel run.*|Cancel \d.*|Run again.*|Redrive.*|Delete.*|Discard.*|Hide.*|Upload.*)$")


def enter(page: Page, key: str) -> None:
    page.locator("dialog input").fill(key)
    page.locator("dialog").get_by_role("button").click()


def test_a_key_is_kept_for_the_session_alone_and_is_never_in_an_address(
    key_holder: tuple[Stack, str], new_page: Callable[..., Page], watched: Watched, expects_trouble: Callable[..., None]
) -> None:
    """FLOW-258, FLOW-262, FLOW-263"""
    stack, key = key_holder
    expects_trouble(r"status of 403")
    run_id = stack.submit()
    page = new_page(stack)
    sent: list[Request] = []
    page.on("request", lambda request: sent.append(request))  # noqa: PLW0108  (the driver marks what it is given)
    page.goto("/")
    dialog = page.locator("dialog")
    expect(dialog).to_be_visible()
    asked = {urlsplit(request.url).path for request in sent if "/static/" not in request.url}
    assert asked <= {"/", "/ready"}, "nothing else is asked for before a key is there"

    enter(page, f"{key}x")
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    assert page.evaluate("sessionStorage.length") == 0

    enter(page, key)
    expect(dialog).to_have_count(0)
    expect(page.locator("main")).to_contain_text(run_id[:8])
    page.goto(f"/#/runs/{run_id}")
    expect(page.locator("main")).to_contain_text("resize_images")
    page.goto("/#/workers")
    expect(page.locator("main h1")).to_be_visible()

    kept = page.evaluate(
        "[JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie, location.href]"
    )
    assert [key in text for text in kept] == [True, False, False, False]
    assert not [url for url in watched.requested if key in url or key[-20:] in url]
    with_key = [request for request in sent if "x-api-key" in request.headers]
    assert {request.headers["x-api-key"] for request in with_key} == {key, f"{key}x"}
    assert all("/static/" not in request.url for request in with_key), "a file needs no key"
    assert key not in page.content()

    page.reload()
    expect(page.locator("main h1")).to_be_visible()  # the session continues
    expect(dialog).to_have_count(0)

    stranger = new_page(stack)
    stranger.goto("/")
    expect(stranger.locator("dialog")).to_be_visible()  # another session knows nothing


def test_a_revoked_key_is_asked_for_again_and_forgetting_one_clears_the_page(
    key_holder: tuple[Stack, str], new_page: Callable[..., Page], expects_trouble: Callable[..., None]
) -> None:
    """FLOW-258, FLOW-265"""
    stack, key = key_holder
    expects_trouble(r"status of 403")
    other = stack.make_key("team-b")
    run_id = stack.submit()
    page = new_page(stack)
    page.goto("/")
    enter(page, key)
    expect(page.locator("main")).to_contain_text(run_id[:8])

    page.goto(f"/#/runs/{run_id}")
    expect(page).to_have_title(re.compile("resize_images"))
    page.get_by_role("button", name="Forget the key").click()
    expect(page.locator("dialog")).to_be_visible()
    assert_nothing_is_left(page, run_id)
    assert page.evaluate("[sessionStorage.length, location.hash]") == [0, "#/runs"]

    enter(page, other)  # of a tenant that has no runs
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator("main")).not_to_contain_text(run_id[:8])
    stack.revoke_key(other)
    expect(page.locator("dialog")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text(run_id[:8])


def assert_nothing_is_left(page: Page, run_id: str) -> None:
    """Neither on the page nor behind it: titles, choices, dialogs, what was told."""
    expect(page).to_have_title("pyoco")
    expect(page.locator(".toast")).to_have_count(0)
    expect(page.locator("dialog")).to_have_count(1)
    assert run_id[:8] not in page.content()
    assert "resize_images" not in page.content()


def test_a_question_that_was_open_goes_with_the_key_it_was_asked_under(
    key_holder: tuple[Stack, str], new_page: Callable[..., Page], expects_trouble: Callable[..., None]
) -> None:
    """FLOW-258, FLOW-265: a button of one tenant's dialog would otherwise act under the next one's key."""
    stack, key = key_holder
    expects_trouble(r"status of 403")
    run_id = stack.submit()
    page = new_page(stack)
    page.goto("/#/runs?flow=resize_images")
    enter(page, key)
    expect(page.locator("main")).to_contain_text(run_id[:8])
    page.get_by_role("button", name="Colours").click()
    expect(page.locator(".toast")).to_have_count(1)
    page.get_by_role("button", name="Submit a run").click()
    dialog = page.locator("dialog:not(.key-prompt)")
    expect(dialog.get_by_label("Flow")).to_have_value("resize_images")
    other = stack.make_key("team-b")
    stack.revoke_key(key)
    expect(page.locator("dialog.key-prompt")).to_be_visible()
    expect(dialog).to_have_count(0)
    assert_nothing_is_left(page, run_id)
    enter(page, other)
    expect(page.locator("main .nothing")).to_be_visible()
    expect(page).to_have_title("Runs · pyoco")
    assert run_id[:8] not in page.content()


def test_a_read_only_dashboard_offers_nothing_and_the_server_refuses_what_is_forged(
    fresh_stack: Callable[..., Stack], new_page: Callable[..., Page], expects_trouble: Callable[..., None]
) -> None:
    """FLOW-249, as it is now: look-only when the operator says so. Programs act as before."""
    expects_trouble(r"status of 403")
    stack = fresh_stack("--no-keeper", dashboard_read_only="1")
    run_id = stack.submit("train_model", {"scale": 100})
    stack.until_status(run_id, "RUNNING")
    page = new_page(stack)
    page.goto(f"/#/runs/{run_id}")
    expect(page.locator("main")).to_contain_text("train_model")
    expect(page.locator("header.top")).to_contain_text("Read-only")
    for panel in panels_of(page):
        expect(page.locator("main").get_by_role("button", name=DEEDS)).to_have_count(0)
        expect(page.locator("main input:is([type=file], [type=checkbox][data-do])")).to_have_count(0)
        page.goto(f"/#/{panel}")
        expect(page.locator("main h1").first).to_be_visible()
    ask = "([path, method]) => fetch(path, { method }).then(async (it) => [it.status, (await it.json()).err_id])"
    for path, method in ((f"runs/{run_id}/cancel", "POST"), ("runs", "POST"), ("dlq/1", "DELETE")):
        assert page.evaluate(ask, [path, method]) == [403, "ERR-PYOCO-0035"]
    assert stack.status(run_id) == "RUNNING"
    assert stack.ask("POST", f"/runs/{run_id}/cancel").status_code == 200
