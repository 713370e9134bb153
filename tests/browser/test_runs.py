"""The list of runs in the browser: live, still under the eye, and usable with keys alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import nats
import pytest
from playwright.sync_api import Locator, Page, expect

from support.browsers import Watched
from support.routes import Paused, intercept
from support.servers import unique
from support.stacks import Stack, aside, until


def row(page: Page, run_id: str) -> Locator:
    return page.locator(f".runs-row[data-id='{run_id}']")


def waiting(stack: Stack, count: int) -> tuple[str, list[str]]:
    """Runs that no worker takes, with a label of their own. Gives the label, and the ids, oldest first."""
    label = unique("label")
    # One queue for all: each would be a line of the page of queues, and a warning above every page of every test.
    runs = [{"flow_name": f"flow_{at}", "tag": "nobody", "tags": [label]} for at in range(count)]
    answer = stack.ask("POST", "/runs/batch", json={"runs": runs}).json()
    assert answer["accepted"] == count
    return label, [item["run_id"] for item in answer["items"]]


def asked(watched: Watched, label: str) -> list[dict[str, str]]:
    """The list requests that concern these runs."""
    queries = [parse_qs(urlsplit(url).query) for url in watched.requested if urlsplit(url).path == "/runs"]
    of_label = [query for query in queries if query.get("tag") == [label] and query.get("include") != ["counts"]]
    return [{name: values[0] for name, values in query.items()} for query in of_label]


def test_a_run_leaves_a_list_of_running_runs_when_it_ends(
    stack: Stack, page: Page, watched: Watched, tmp_path: Path
) -> None:
    """FLOW-189, FLOW-190, FLOW-250: by a refresh with 5 seconds of overlap and without the status."""
    label = unique("leaves")
    page.goto(f"/#/runs?tag={label}&status=RUNNING")
    expect(page.locator(".nothing")).to_be_visible()
    gate = tmp_path / "gate"
    gate.touch()
    run_id = stack.submit("resize_images", {"while_exists": str(gate)}, tags=[label])
    expect(row(page, run_id)).to_be_visible(timeout=200_000)
    gate.unlink()
    expect(row(page, run_id)).to_have_count(0, timeout=200_000)
    assert stack.status(run_id) == "COMPLETED"
    refreshes = [query for query in asked(watched, label) if "updated_after" in query]
    assert refreshes
    assert not any("status" in query for query in refreshes)
    ended = stack.get(f"/runs/{run_id}")["updated_at"]
    with page.expect_request(lambda request: f"tag={label}" in request.url and "updated" in request.url) as refresh:
        pass
    since = parse_qs(urlsplit(refresh.value.url).query)["updated_after"][0]
    assert float(since) == pytest.approx(ended - 5, abs=1e-5)


@pytest.mark.usefixtures("own_context")
def test_a_run_that_is_no_longer_stored_goes_within_a_minute(stack: Stack, page: Page) -> None:
    """FLOW-191: there is no event for it, so everything is loaded again."""
    label, ids = waiting(stack, 3)
    page.clock.install()
    page.goto(f"/#/runs?tag={label}")
    expect(row(page, ids[1])).to_be_visible()

    async def remove() -> None:
        connection = await nats.connect(stack.nats_url)
        await (await connection.jetstream().key_value("pyoco_runs")).delete(ids[1])
        await connection.close()

    aside(remove)
    until(lambda: len(stack.get("/runs", tag=label)) == 2, what="the index")
    page.clock.fast_forward(60_000)
    expect(row(page, ids[1])).to_have_count(0)
    expect(row(page, ids[0])).to_be_visible()


def test_what_one_looks_at_stays_where_it_is(stack: Stack, page: Page, watched: Watched) -> None:
    """New runs come in above, and a button says so. Pages are loaded as far as one scrolls, and few rows are drawn."""
    label, ids = waiting(stack, 650)
    page.goto(f"/#/runs?tag={label}")
    expect(row(page, ids[-1])).to_be_visible()
    assert len([query for query in asked(watched, label) if "updated_after" not in query]) == 1, "nobody has scrolled"
    page.evaluate("scrollTo(0, 5000)")
    looked_at = page.locator(".runs-body .runs-row[aria-rowindex='108']")
    expect(looked_at).to_be_in_viewport()
    looked_at_id = looked_at.get_attribute("data-id") or ""
    before = row(page, looked_at_id).bounding_box()
    new = [stack.submit("flow_new", tag="nobody", tags=[label]) for _ in range(2)]
    pill = page.locator(".runs-pill")
    expect(pill).to_have_text(re.compile("[12] new"))
    expect(pill).to_have_text("2 new")
    assert row(page, looked_at_id).bounding_box() == before
    assert page.locator(".runs-body .runs-row").count() < 80
    pill.click()
    expect(row(page, new[1])).to_be_in_viewport()
    expect(pill).to_be_hidden()
    until(lambda: page.evaluate("scrollTo(0, document.body.scrollHeight)") or row(page, ids[0]).count(), what="the end")
    assert page.locator("[role=grid]").get_attribute("aria-rowcount") == "653"


def test_the_list_is_used_with_keys_alone(stack: Stack, page: Page) -> None:
    """Roving focus, ranges, and a focus that survives what comes in and what goes."""
    label, ids = waiting(stack, 60)
    newest = ids[::-1]
    page.goto(f"/#/runs?tag={label}")
    expect(row(page, newest[0])).to_be_visible()
    for key in ("j", "ArrowDown", "k", "j"):
        page.keyboard.press(key)
    expect(row(page, newest[1])).to_be_focused()
    page.keyboard.press("x")
    page.keyboard.press("Shift+ArrowDown")
    expect(page.locator(".runs-row[aria-selected=true]")).to_have_count(2)
    came = stack.submit("flow_new", tag="nobody", tags=[label])
    expect(row(page, came)).to_be_attached()
    expect(row(page, newest[2])).to_be_focused()
    assert row(page, newest[2]).get_attribute("aria-rowindex") == "5"
    page.keyboard.press("Escape")
    expect(page.locator(".runs-row[aria-selected=true]")).to_have_count(0)
    page.keyboard.press("End")
    expect(row(page, ids[0])).to_be_focused()
    expect(row(page, ids[0])).to_be_in_viewport()
    page.keyboard.press("Home")
    expect(row(page, came)).to_be_focused()
    page.keyboard.press("PageDown")
    opened = page.evaluate("document.activeElement.dataset.id")
    assert opened in newest[3:]
    page.keyboard.press("Enter")
    page.wait_for_function("(id) => location.hash === `#/runs/${id}`", arg=opened)
    page.go_back()
    expect(row(page, opened)).to_be_in_viewport()


def test_runs_are_found_by_words_and_ids_from_every_page(stack: Stack, page: Page) -> None:
    """CLI-16: by what is typed on the list, and by Enter elsewhere; the words are in the address."""
    word = unique("found").replace("-", "")
    run_id = stack.submit("flow_found", {"where": word}, tag="nobody")
    page.goto("/#/queues")
    expect(page.locator("main h1")).to_be_visible()
    page.keyboard.press("/")
    search = page.get_by_role("searchbox")
    expect(search).to_be_focused()
    page.keyboard.type(f"{word} nobody")
    page.keyboard.press("Enter")
    page.wait_for_function("(word) => location.hash === `#/runs?q=${word}+nobody`", arg=word)
    expect(row(page, run_id)).to_be_visible()
    expect(page.locator(".runs-body .runs-row")).to_have_count(1)
    expect(page.locator(".runs-status-chip", has_text="Pending").locator(".runs-count")).to_have_text("1")
    search.fill(f"{word} elsewhere")  # and nothing is pressed
    expect(page.locator(".nothing")).to_be_visible()
    expect(search).to_be_focused()
    search.fill("")
    page.wait_for_function("() => location.hash === '#/runs'")
    for text in (run_id[:13].upper(), run_id):  # the only one that begins so, and the whole id
        search.fill(text)
        page.keyboard.press("Enter")
        page.wait_for_function("(id) => location.hash === `#/runs/${id}`", arg=run_id)
        page.go_back()
        expect(search).to_be_visible()
        search.focus()


@pytest.mark.usefixtures("own_context")
def test_enter_opens_nothing_when_several_runs_match(page: Page) -> None:
    ids = [f"abcd{at:04}-0000-4000-8000-000000000000" for at in range(2)]
    items = [{"run_id": run_id, "status": "PENDING", "submitted_at": 1.0, "updated_at": 1.0} for run_id in ids]
    found = {"items": items, "next_cursor": None}
    intercept(page, re.compile(r"/runs\?.*q=abcd"), lambda route: route.fulfill(json=found))
    page.clock.install()
    page.goto("/#/runs")
    page.get_by_role("searchbox").fill("abcd")
    page.keyboard.press("Enter")
    expect(page.locator(".runs-body .runs-row")).to_have_count(2)
    found["items"] = items[:1]  # one was removed since, without another click
    page.clock.fast_forward(60_000)
    expect(page.locator(".runs-body .runs-row")).to_have_count(1)
    assert page.url.endswith("#/runs?q=abcd")


def test_a_filter_is_a_part_of_the_address_and_can_be_kept_by_name(stack: Stack, page: Page) -> None:
    label, ids = waiting(stack, 2)
    page.goto("/#/runs")
    page.get_by_role("combobox", name="Tag or label").fill(label)
    page.keyboard.press("Enter")
    page.locator(".runs-status-chip", has_text="Pending").click()
    page.wait_for_function("(tag) => location.hash === `#/runs?status=PENDING&tag=${tag}`", arg=label)
    expect(page.locator(".runs-body .runs-row")).to_have_count(2)
    expect(page.locator(".runs-command")).to_contain_text(f"--status PENDING --tag {label}")
    page.get_by_role("button", name="Views").click()
    page.get_by_role("button", name="Save this view").click()
    page.locator("dialog input").fill("Mine <b>")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Clear all").click()
    page.wait_for_function("() => location.hash === '#/runs'")
    page.reload()
    page.get_by_role("button", name="Views").click()
    page.get_by_role("link", name="Mine <b>").click()
    expect(page.locator(".runs-body .runs-row")).to_have_count(2)
    expect(row(page, ids[0])).to_be_visible()
    page.get_by_role("button", name="Views").click()
    page.get_by_role("button", name="Delete the view Mine <b>").click()
    expect(page.get_by_role("link", name="Mine <b>")).to_have_count(0)


def test_a_list_that_is_refused_says_why(page: Page, expects_trouble: Callable[..., None]) -> None:
    expects_trouble("422")
    page.goto("/#/runs?status=SLEEPING")
    expect(page.locator(".nothing")).to_contain_text("ERR-PYOCO-0017")
    page.locator(".nothing").get_by_role("button", name="Clear all").click()
    expect(page.locator("main")).not_to_contain_text("ERR-PYOCO-0017")


def test_one_clock_that_is_fast_does_not_stop_the_list(stack: Stack, page: Page) -> None:
    """FLOW-190: a worker an hour ahead has told of a change; those of the others are seen all the same."""
    label, ids = waiting(stack, 3)
    shown_by: dict[str, str] = {}

    def ahead(route: Paused) -> None:
        answer = route.fetch()
        told = answer.json()
        for item in told["items"]:
            item["updated_at"] += 3600 * (item["run_id"] == ids[0])
            shown_by.setdefault(item["run_id"], route.request.url)
        route.fulfill(response=answer, json=told)

    intercept(page, re.compile(rf"/runs\?.*tag={label}"), ahead)
    page.goto(f"/#/runs?tag={label}")
    expect(row(page, ids[0])).to_be_visible()
    new = stack.submit("flow_new", tag="nobody", tags=[label])
    expect(row(page, new)).to_be_visible()
    assert "updated_after=" in shown_by[new], "before everything is loaded again"


def test_an_age_goes_on_while_no_answer_comes(page: Page, expects_trouble: Callable[..., None]) -> None:
    expects_trouble("status of 500")
    page.goto("/#/runs")
    age = page.locator(".runs-state time")
    expect(age).to_be_visible()
    intercept(page, "**/runs?*", lambda route: route.fulfill(status=500, body="{}"))
    expect(age).to_have_text(re.compile(r"^([2-9]|\d\d) s ago"))
    page.evaluate("""() => { window.ages = []; const age = document.querySelector('.runs-state time');
      const how = { childList: true, characterData: true, subtree: true };
      new MutationObserver(() => ages.push(age.textContent)).observe(age, how) }""")
    for _ in range(2):
        with page.expect_response("**/runs?*"):
            pass
    page.wait_for_function("() => ages.length > 0")
    assert not [text for text in page.evaluate("ages") if text == "just now"]


def test_a_filter_that_is_removed_leaves_the_focus_to_the_next(page: Page) -> None:
    page.goto("/#/runs?flow=a&tag=b&kind=exec&status=FAILED")
    page.get_by_role("button", name="Remove the filter Tag or label").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Remove the filter Kind")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Remove the filter Flow")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.locator(".runs-clear").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("searchbox")).to_be_focused()
    assert page.url.endswith("#/runs")


def test_a_box_that_was_ticked_takes_no_letters(stack: Stack, page: Page) -> None:
    label, ids = waiting(stack, 1)
    page.goto(f"/#/runs?tag={label}")
    row(page, ids[0]).get_by_role("checkbox").click()
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("Keyboard shortcuts")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page.locator("main h1")).to_have_text("Workers")


def test_on_a_phone_the_runs_come_first_and_nothing_is_lost(stack: Stack, page: Page) -> None:
    label, ids = waiting(stack, 2)
    page.set_viewport_size({"width": 380, "height": 800})
    page.goto("/#/runs")
    expect(page.locator(".runs-body .runs-row").first).to_be_visible()
    top = "(name) => document.querySelector(name).getBoundingClientRect().top"
    assert page.evaluate(top, ".runs-body") - page.evaluate(top, ".runs") < 190
    pending = page.locator(".runs-status-chip", has_text="Pending")
    expect(pending).to_be_hidden()
    page.get_by_role("button", name="Filters").click()
    page.get_by_role("combobox", name="Tag or label").fill(label)
    page.keyboard.press("Enter")
    pending.click()
    expect(page.locator(".runs-body .runs-row")).to_have_count(2)
    page.reload()
    expect(pending).to_be_visible()  # what is in force is shown
    command = page.locator(".runs-command")
    expect(command).to_contain_text(f"--status PENDING --tag {label}")
    last = row(page, ids[0]).bounding_box()
    told = command.bounding_box()
    assert last is not None
    assert told is not None
    assert told["y"] > last["y"] + last["height"] - 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_quiet_list_costs_next_to_nothing(stack: Stack, page: Page) -> None:
    """FLOW-190: the five seconds of overlap are asked for again and again, and sent only when some run has changed."""
    stack.until_status(stack.submit("resize_images"), "COMPLETED")
    statuses: list[int] = []
    page.on("response", lambda answer: statuses.append(answer.status) if "updated_after" in answer.url else None)
    page.goto("/#/runs")

    def is_quiet() -> bool:
        page.wait_for_timeout(200)  # answers are announced while the page has the focus
        return 304 in statuses

    until(is_quiet, 60)
    run_id = stack.submit("resize_images")
    expect(row(page, run_id)).to_be_visible()
