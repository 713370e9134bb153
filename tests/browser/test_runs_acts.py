"""What is done to many runs at once, and with a form, from the list of runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from support.browsers import only_looks
from support.routes import Paused, intercept, stop_intercepting
from support.servers import unique
from support.stacks import Stack

FLOW_YAML = "flow:\n  graph: a >> b\n  defaults: {who: file}\n"


def of_label(stack: Stack, label: str, count: int, tag: str = "nobody") -> list[str]:
    runs = [{"flow_name": "resize_images", "params": {"scale": 0.1}, "tag": tag, "tags": [label]} for _ in range(count)]
    return [item["run_id"] for item in stack.ask("POST", "/runs/batch", json={"runs": runs}).json()["items"]]


def statuses(stack: Stack, ids: list[str]) -> list[str]:
    return [stack.status(run_id) for run_id in ids]


def test_a_range_of_rows_is_cancelled_and_the_others_are_not(stack: Stack, page: Page) -> None:
    label = unique("some")
    ids = of_label(stack, label, 5)
    page.goto(f"/#/runs?tag={label}")
    rows = page.locator(".runs-body .runs-row")
    expect(rows).to_have_count(5)
    rows.nth(1).get_by_role("checkbox").click()
    rows.nth(3).get_by_role("checkbox").click(modifiers=["Shift"])
    bulk = page.locator(".runs-bulk")
    expect(bulk).to_contain_text("3 selected")
    bulk.get_by_role("button", name="Cancel", exact=True).click()
    page.locator("dialog").get_by_role("textbox").fill("not these")
    page.locator("dialog").get_by_role("button", name="Cancel runs").click()
    expect(bulk).to_contain_text("Cancellation requested for 3 runs.")
    for run_id in ids[1:4]:
        stack.until_status(run_id, "CANCELLED")
    assert statuses(stack, [ids[0], ids[4]]) == ["PENDING", "PENDING"]
    assert stack.get(f"/runs/{ids[2]}")["cancel_reason"] == "not these"


def test_all_that_match_are_cancelled_after_a_look_at_what_that_is(stack: Stack, page: Page) -> None:
    label, other = unique("all"), unique("other")
    ids, spared = of_label(stack, label, 4), of_label(stack, other, 1)
    page.goto(f"/#/runs?tag={label}")
    page.get_by_role("button", name="Cancel all matching").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text(label)
    expect(dialog).to_contain_text("4 runs match now.")
    dialog.get_by_role("button", name="Cancel runs").click()
    expect(page.locator(".runs-bulk")).to_contain_text("Cancellation requested for 4 runs.")
    for run_id in ids:
        stack.until_status(run_id, "CANCELLED")
    assert statuses(stack, spared) == ["PENDING"]


def test_a_filter_that_was_typed_is_in_force_before_a_button_is_pressed(stack: Stack, page: Page) -> None:
    """Leaving the field is what sets the filter. The press that leaves it must not act on the list of before."""
    label = unique("typed")
    of_label(stack, label, 1)
    asked: list[Any] = []

    def cancel(route: Paused) -> None:
        asked.append(route.request.post_data_json)
        names = ("matched", "asked", "already_cancelling", "already_ended", "not_found", "failed")
        route.fulfill(body=json.dumps({**dict.fromkeys(names, 0), "more": False}))

    intercept(page, "**/runs/cancel", cancel)  # never for real: were it wrong, it would stop the runs of all tests
    page.goto("/#/runs")
    button = page.get_by_role("button", name="Cancel all matching")
    expect(button).to_be_visible()
    page.get_by_role("combobox", name="Tag or label").fill(label)
    # In one turn, as with a fast user: the event of the new address has not arrived yet.
    button.evaluate("(button) => { document.activeElement.blur(); button.click(); }")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text(label)
    expect(dialog).not_to_contain_text("ALL runs")
    dialog.get_by_role("button", name="Cancel runs").click()
    expect(page.locator(".runs-bulk")).to_contain_text("Cancellation requested for 0 runs")
    assert [(each.get("tag"), each.get("all")) for each in asked] == [(label, None)]

    # With a real pointer the button is still there when the finger is lifted.
    page.goto("/#/runs")
    expect(page.locator(".chip.on")).to_have_count(0)
    expect(button).to_be_visible()
    page.get_by_role("combobox", name="Tag or label").fill(label)
    button.click()
    expect(dialog).to_contain_text(label)
    page.keyboard.press("Escape")

    # A link has changed the address, and its event has not arrived yet.
    page.goto("/#/runs")
    expect(page.locator(".chip.on")).to_have_count(0)
    expect(button).to_be_visible()
    button.evaluate("(button, tag) => { location.hash = `#/runs?tag=${tag}`; button.click(); }", label)
    expect(dialog).to_contain_text(label)


def test_without_a_filter_it_says_that_it_is_about_all_runs_and_how_many_at_least(stack: Stack, page: Page) -> None:
    asked: list[str] = []

    def many(route: Paused) -> None:
        if "limit=200" not in route.request.url or "status=" not in route.request.url:
            route.continue_()
            return
        asked.append(route.request.url)
        route.fulfill(body=json.dumps({"items": [{}] * 200, "next_cursor": "more"}))

    of_label(stack, unique("any"), 1)
    intercept(page, "**/runs?*", many)
    page.goto("/#/runs")
    page.get_by_role("button", name="Cancel all matching").click()
    dialog = page.locator("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Cancel ALL runs?")
    expect(dialog.get_by_role("button", name="Cancel ALL runs")).to_be_visible()
    expect(dialog).to_contain_text("At least 2,000 runs match")
    assert len(asked) == 10


def test_selected_runs_are_run_again(stack: Stack, page: Page, expects_trouble: Callable[..., None]) -> None:
    label = unique("again")
    ids = of_label(stack, label, 6, "default")
    for run_id in ids:
        stack.until_status(run_id, "COMPLETED")
    page.goto(f"/#/runs?tag={label}")
    expect(page.locator(".runs-body .runs-row")).to_have_count(6)
    page.get_by_role("checkbox", name="Select all loaded runs").check()
    intercept(
        page, f"**/runs/{ids[2]}/rerun", lambda route: route.fulfill(status=409, body='{"detail": "not this one"}')
    )
    expects_trouble("409")
    page.locator(".runs-bulk").get_by_role("button", name="Run again").click()
    page.locator("dialog").get_by_role("button", name="Run again").click()
    expect(page.locator(".runs-bulk")).to_contain_text("5 new runs submitted. 1 failed.")
    expect(page.locator(".runs-body .runs-row")).to_have_count(11)
    selected = page.locator(".runs-row[aria-selected=true]")  # to be tried again; the others are done
    expect(selected).to_have_count(1)
    assert selected.get_attribute("data-id") == ids[2]
    stop_intercepting(page, f"**/runs/{ids[2]}/rerun")
    page.locator(".runs-bulk").get_by_role("button", name="Run again").click()
    page.locator("dialog").get_by_role("button", name="Run again").click()
    expect(page.locator(".runs-body .runs-row")).to_have_count(12)
    expect(selected).to_have_count(0)


def test_a_run_is_submitted_with_a_form(stack: Stack, page: Page) -> None:
    page.goto("/#/runs")
    page.get_by_role("button", name="Submit a run").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Flow", exact=True).fill("resize_images")
    dialog.get_by_label("Params").fill("[1]")
    dialog.get_by_role("button", name="Submit").click()
    expect(dialog.get_by_role("alert")).to_contain_text("JSON object")
    dialog.get_by_label("Params").fill('{"scale": 0.1, "who": "form", "id": 12345678901234567890}')
    dialog.get_by_role("button", name="Submit").click()
    page.wait_for_function("() => location.hash.startsWith('#/runs/')")
    run_id = page.evaluate("location.hash").removeprefix("#/runs/")
    stack.until_status(run_id, "COMPLETED")
    params = {"scale": 0.1, "who": "form", "id": 12345678901234567890}  # more digits than a browser's number has
    assert stack.get(f"/runs/{run_id}")["params"] == params


def test_an_announced_flow_has_a_field_for_each_param(stack: Stack, page: Page) -> None:
    """APP-11: names to choose from, and fields from the signature"""
    properties = {
        "who": {"type": "string"},
        "id": {"type": "integer"},
        "scale": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "mode": {"enum": ["fast", "exact"], "default": "fast"},
        "dry": {"type": "boolean", "default": True},
        "sizes": {"type": "array", "items": {"type": "integer"}, "default": [1]},
    }
    params = {"type": "object", "properties": properties, "required": ["who", "id"], "additionalProperties": False}
    flow = {"name": "resize_images", "app": "demo", "doc": "Makes them smaller.", "tags": ["demo"], "tag": "default"}
    flows = {"items": [{**flow, "params": params}, {**flow, "name": "bare", "params": {}}], "next_cursor": None}
    intercept(page, "**/flows?**", lambda route: route.fulfill(json=flows))
    page.goto("/#/runs")
    page.get_by_role("button", name="Submit a run").click()
    dialog = page.locator("dialog")
    expect(dialog.locator("#submit-flows option[value=bare]")).to_have_count(1)
    name = dialog.get_by_label("Flow", exact=True)
    name.fill("bare")
    expect(dialog.get_by_label("Params")).to_be_visible()
    name.fill("resize_images")
    expect(dialog.get_by_text("Makes them smaller.")).to_be_visible()
    expect(dialog.get_by_label("Params")).to_be_hidden()
    dialog.get_by_role("button", name="Submit").click()
    expect(dialog.get_by_role("alert")).to_have_text("who: A value is required.")
    dialog.get_by_label("who *").fill('form "ü"')
    dialog.get_by_label("id *").fill("1.5")
    dialog.get_by_role("button", name="Submit").click()
    expect(dialog.get_by_role("alert")).to_have_text("id: Must be a whole number.")
    dialog.get_by_label("id *").fill("12345678901234567890")  # more digits than a browser's number has
    dialog.get_by_label("scale").fill("0.1")
    assert dialog.get_by_label("mode").locator("option").all_inner_texts() == ["default: fast", "fast", "exact"]
    dialog.get_by_label("mode").select_option("exact")
    dialog.get_by_label("dry").select_option("false")
    dialog.get_by_role("button", name="Edit as JSON").click()
    text = dialog.get_by_label("Params").input_value()
    dialog.get_by_label("Params").fill(text.replace("}", ', "sizes": [7]}'))
    dialog.get_by_role("button", name="Submit").click()
    page.wait_for_function("() => location.hash.startsWith('#/runs/')")
    run_id = page.evaluate("location.hash").removeprefix("#/runs/")
    stack.until_status(run_id, "COMPLETED")
    run = stack.get(f"/runs/{run_id}")
    given = {"who": 'form "ü"', "id": 12345678901234567890, "scale": 0.1, "mode": "exact", "dry": False, "sizes": [7]}
    assert (run["params"], run["tag"], run["tags"]) == (given, "default", ["demo"])


def test_a_flow_file_is_submitted_with_the_form(stack: Stack, page: Page, expects_trouble: Callable[..., None]) -> None:
    """`POST /runs/yaml`: from a file or as typed; each problem is shown with its place."""
    expects_trouble("422")
    page.goto("/#/runs")
    page.get_by_role("button", name="Submit a run").click()
    dialog = page.locator("dialog")
    dialog.get_by_role("button", name="A flow.yaml").click()
    expect(dialog.get_by_label("Params")).to_be_hidden()
    dialog.get_by_label("Flow", exact=True).fill("by_file")
    dialog.get_by_label("Tag").fill("nobody")
    dialog.get_by_role("button", name="Submit").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Choose a file")
    text = dialog.get_by_label("YAML (chosen above")
    text.fill("version: 1\nflow: [")
    dialog.get_by_role("button", name="Submit").click()
    expect(dialog.get_by_role("alert")).to_contain_text(re.compile(r"ERR-PYOCO-\d+"))
    expect(dialog.get_by_role("alert")).to_contain_text("line")
    dialog.get_by_label("File").set_input_files({"name": "flow.yaml", "mimeType": "", "buffer": FLOW_YAML.encode()})
    expect(text).to_have_value(FLOW_YAML)
    dialog.get_by_role("button", name="Submit").click()
    page.wait_for_function("() => location.hash.startsWith('#/runs/')")
    run = stack.get("/runs/" + page.evaluate("location.hash").removeprefix("#/runs/"))
    assert (run["flow_name"], run["tag"], run["params"]) == ("by_file", "nobody", {"who": "file"})


def test_a_list_that_may_not_act_offers_nothing_of_this(stack: Stack, page: Page) -> None:
    """PYOCO_DASHBOARD_READ_ONLY: no key and no button, though the list itself is whole."""
    label = unique("seen")
    of_label(stack, label, 1)
    only_looks(page)
    page.goto(f"/#/runs?tag={label}")
    expect(page.locator(".runs-body .runs-row")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("main").get_by_role("checkbox")).to_have_count(0)
    expect(page.locator(".runs-bulk")).to_be_hidden()
    for name in ("Submit a run", "Cancel all matching"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
