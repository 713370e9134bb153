"""Running a run again: what is shown before, and what is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.pretended_runs import RUN_ID, a_run, pretend
from support.routes import Paused, intercept
from support.stacks import Stack

LONG = 12345678901234567890123


def open_dialog(page: Page, run: dict[str, Any], answer: dict[str, Any] | None = None) -> list[str]:
    """The dialog of a pretended run. Gives the bodies that were sent since."""
    sent: list[str] = []

    def again(route: Paused) -> None:
        sent.append(route.request.post_data or "")
        route.fulfill(**(answer or {"json": {"run_id": "new-run", "status": "PENDING"}}))

    pretend(page, run, lambda _: [])
    intercept(page, re.compile("/rerun$"), again)
    page.goto(f"/#/runs/{RUN_ID}")
    page.locator("main").get_by_role("button", name="Run again").click()
    expect(page.get_by_role("dialog")).to_contain_text("pretended")
    return sent


def test_a_run_is_shown_before_it_runs_again_and_escape_leaves_it(
    page: Page, expects_trouble: Callable[..., None]
) -> None:
    expects_trouble("404")  # there is no new run behind it
    sent = open_dialog(page, a_run(status="COMPLETED", tag="gpu", params={"id": LONG, "turn": "a\u202eb"}))
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("dl")).to_have_text(re.compile("pretended.*gpu"))
    expect(dialog.locator("textarea")).to_have_value(f'{{\n  "id": {LONG},\n  "turn": "a\\u202eb"\n}}')
    expect(dialog.locator("textarea")).to_be_focused()
    page.keyboard.press("Enter")  # a line of its own, nothing else
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert page.evaluate("location.hash") == f"#/runs/{RUN_ID}", "the page of the run is still open"
    assert sent == []
    page.locator("main").get_by_role("button", name="Run again").click()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+Enter")
    page.wait_for_function("() => location.hash === '#/runs/new-run'")
    assert sent == ["{}"]


def test_only_the_params_that_differ_are_sent_as_they_were_typed(
    page: Page, expects_trouble: Callable[..., None]
) -> None:
    """Every digit of them; the server lays them over the old ones."""
    expects_trouble("404")
    sent = open_dialog(page, a_run(status="FAILED", params={"id": LONG, "rate": 0.5, "same": {"deep": [1]}}))
    dialog = page.get_by_role("dialog")
    yes = dialog.get_by_role("button", name="Run again")
    for text, words in (
        ('{"id": 1', "Not valid JSON"),
        ("[1]", "Params must be a JSON object"),
        (f'{{"id": {LONG}, "rate": 0.5}}', 'only changed: "same"'),
    ):
        dialog.locator("textarea").fill(text)
        yes.click()
        expect(dialog.get_by_role("alert")).to_contain_text(words)
        expect(dialog.locator("textarea")).to_have_attribute("aria-invalid", "true")
    assert sent == []
    dialog.locator("textarea").fill(f'{{"same":{{"deep":[1]}},"new":{LONG + 2},"rate":1.0,"id":{LONG}}}')
    yes.click()
    page.wait_for_function("() => location.hash === '#/runs/new-run'")
    assert sent == [f'{{"params":{{"new":{LONG + 2},"rate":1.0}}}}']


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"params": {}, "params_truncated": True}, "too large to store"),
        ({"params": {"a": 1}, "workflow_yaml_sha256": "ab" * 32}, "its own defaults"),
    ],
)
def test_what_cannot_be_changed_cannot_be_edited_and_a_refusal_is_told(
    page: Page, expects_trouble: Callable[..., None], more: dict[str, Any], note: str
) -> None:
    expects_trouble("409")
    refusal = {"err_id": "ERR-PYOCO-0001", "message": "It cannot be run again.", "detail": "the file is no longer kept"}
    sent = open_dialog(page, a_run(status="FAILED", **more), {"status": 409, "json": refusal})
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(note)
    expect(dialog.locator("textarea")).not_to_be_editable()
    dialog.get_by_role("button", name="Run again").click()
    expect(dialog.get_by_role("alert")).to_contain_text("the file is no longer kept")
    assert sent == ["{}"]


def test_a_changed_param_reaches_the_new_run(stack: Stack, page: Page) -> None:
    run_id = stack.submit("resize_images", {"scale": 0.1, "kept": 1}, tag="nobody-serves-this")
    page.goto(f"/#/runs/{run_id}")
    page.locator("main").get_by_role("button", name="Run again").click()
    page.locator("dialog textarea").fill(json.dumps({"scale": 0.2, "kept": 1}))
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    page.wait_for_function("(old) => location.hash.startsWith('#/runs/') && !location.hash.includes(old)", arg=run_id)
    again = stack.get(f"/runs/{page.evaluate('location.hash').removeprefix('#/runs/')}")
    assert (again["params"], again["rerun_of"]) == ({"scale": 0.2, "kept": 1}, run_id)
    for each in (run_id, again["run_id"]):
        stack.ask("POST", f"/runs/{each}/cancel")
