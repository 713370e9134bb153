"""Dead letters: looked at, redriven and deleted, one by one and in groups."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from support.routes import Paused, intercept
from support.stacks import Stack, until


def _leave_letters(stack: Stack, n: int, tag: str, first: int = 0) -> list[str]:
    """Runs that failed, each with its letter, under a label of the test's own."""
    runs = [stack.submit("charge_cards", {"card": f"{tag}-{first + each}"}, tags=[tag]) for each in range(n)]
    for run_id in runs:
        stack.until_status(run_id, "FAILED")
    until(lambda: {each["run_id"] for each in stack.get("/dlq", tag=tag)["items"]} >= set(runs), what="letters")
    return runs


def _look_again(page: Page) -> None:
    """As when a user returns to the page: it polls at once."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


@pytest.fixture
def label() -> str:
    return f"label-{uuid.uuid4().hex[:8]}"


def test_an_empty_flow_is_a_filter_and_never_means_all(module_page: Page) -> None:
    found = module_page.evaluate(
        """() => import('/static/lib/letters.js').then((m) => {
            const filter = m.readFilter(new URLSearchParams('reason=timeout&no_flow=1'));
            const counts = { total: 9, groups: [{ reason: 'timeout', flow_name: null, count: 2, newest_at: 0 },
              { reason: 'timeout', flow_name: 'f', count: 3, newest_at: 0 }] };
            return [m.letterPath(filter), m.given(filter), m.placeOf(filter).no_flow, m.countOf(filter, counts),
              m.countOf({ ...filter, flow: null }, counts), m.countOf({ ...filter, tag: 'x' }, counts)];
          })"""
    )
    assert found == ["dlq?reason=timeout&flow=", {"reason": "timeout", "flow": ""}, "1", 2, 5, None]


def test_a_first_page_that_comes_again_keeps_what_was_loaded_below_while_that_joins_it(module_page: Page) -> None:
    found = module_page.evaluate(
        """() => import('/static/lib/letters.js').then((m) => {
            const letters = (...ids) => ids.map((id) => ({ id: String(id), timestamp: 0, reason: 'x' }));
            const told = (loaded) => [loaded.letters.map((each) => Number(each.id)), loaded.isDeep, loaded.isCut];
            return [
              m.mergePage(letters(9, 8, 7, 3, 2), letters(11, 9, 7), false),
              m.mergePage(letters(9, 8), letters(9), true),
              m.mergePage(letters(9), [], false),
              m.mergePage([], letters(7, 9, 8), false),
              m.mergePage(letters(10, 6, 5), letters(14, 13, 12), false),
              m.mergePage(letters(10, 6, 5), letters(11, 6), false),
              m.mergePage(letters(10, 9, 6, 5), letters(12, 11, 10), false, 5),
              m.addPage(letters(9, 8), letters(7, 8, 6), 3),
            ].map(told);
          })"""
    )
    assert found == [
        [[11, 9, 7, 3, 2], True, False],
        [[9], False, False],
        [[], False, False],
        [[9, 8, 7], False, False],
        [[14, 13, 12], False, False],  # 11 may be there, too: what was loaded is dropped rather than shown with a gap
        [[11, 6, 5], True, False],  # nothing lies between, though the newest of those that were loaded has gone
        [[12, 11, 10, 9, 6], True, True],
        [[9, 8, 7], True, True],
    ]


def test_a_letter_is_looked_at_and_redriven(stack: Stack, page: Page, label: str) -> None:
    (run_id,) = _leave_letters(stack, 1, label)
    page.goto(f"/#/letters?tag={label}")
    row = page.locator(".letter-rows .row")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("was declined by the bank")
    row.get_by_role("button", name="charge_cards").click()
    detail = row.locator(".row-detail")
    expect(detail.locator(f'a[href="#/runs/{run_id}"]')).to_be_visible()
    expect(detail.locator(".json")).to_contain_text(f"{label}-0")  # what it was submitted with
    expect(detail).to_contain_text("The engine or a task raised an error.")
    letter_id = stack.get("/dlq", tag=label)["items"][0]["id"]
    assert page.url.endswith(f"letter={letter_id}")
    expect(page.locator(".letters > div > .command")).to_contain_text(f" dlq show {letter_id}")
    detail.get_by_role("button", name="Redrive").click()
    expect(page).not_to_have_url(f"{stack.address}/#/runs/{run_id}")
    page.wait_for_url("**/#/runs/*")
    again = page.url.rsplit("/", 1)[-1]
    assert stack.get(f"/runs/{again}")["rerun_of"] == run_id


def test_a_group_is_redriven_with_numbers_and_deleted_after_a_question(
    fresh_stack: Callable[..., Stack], new_page: Callable[..., Page], label: str
) -> None:
    stack = fresh_stack("--no-keeper", priced_enabled=0)
    page = new_page(stack)
    page.goto("/#/letters")
    expect(page.locator(".nothing-title")).to_have_text("No dead letters")
    _leave_letters(stack, 3, label)
    stack.until_status(stack.submit("no_such_flow"), "FAILED")
    page.reload()
    group = page.locator(".group", has_text="charge_cards")
    expect(group).to_contain_text("Execution error")
    group.click()
    expect(group).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("location.hash") == "#/letters?reason=execution_error&flow=charge_cards"
    expect(page.locator(".letter-rows .row")).to_have_count(3)

    def press(name: str) -> None:
        page.get_by_role("button", name=name).click()

    press("Redrive all 3")
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.locator(".bulk-status")).to_contain_text("Redriven: 3.")
    until(lambda: stack.get("/dlq/counts")["total"] == 4, what="three new failures")
    page.reload()
    press("Delete all 3")
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    assert stack.get("/dlq/counts")["total"] == 4
    press("Delete all 3")
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    expect(page.get_by_role("button", name="Delete all 3")).to_be_focused()
    _leave_letters(stack, 1, label, first=3)
    _look_again(page)
    expect(page.get_by_role("button", name="Delete all 4")).to_be_focused()  # the same button, with another number
    press("Delete all 4")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".bulk-status")).to_contain_text("Deleted: 4.")
    # The filter was kept: the letter of the other flow is still there.
    assert [group["flow_name"] for group in stack.get("/dlq/counts")["groups"]] == ["no_such_flow"]
    expect(page.locator(".letter-rows .row")).to_have_count(0)
    page.get_by_role("link", name="All dead letters").first.click()
    expect(page.locator(".letter-rows .row")).to_have_count(1)
    press("Delete all 1")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".nothing-title")).to_have_text("No dead letters")
    # The list went, and what came of it is still told, and has the focus that the button had.
    expect(page.locator(".bulk-status")).to_contain_text("Deleted: 1.")
    expect(page.locator(".bulk-status")).to_be_focused()


@pytest.mark.parametrize(("deed", "done"), [("Redrive", "Redriven: 2."), ("Delete", "Deleted: 2.")])
def test_a_letter_that_comes_in_while_somebody_thinks_is_not_meant(
    stack: Stack, page: Page, label: str, deed: str, done: str
) -> None:
    _leave_letters(stack, 2, label)
    page.goto(f"/#/letters?tag={label}")
    page.get_by_role("button", name=f"{deed} all 2").click()
    dialog = page.get_by_role("dialog")
    newest = stack.get("/dlq", tag=label)["items"][0]["id"]
    expect(dialog.locator(".command")).to_contain_text(f"--tag {label} --up-to {newest} --yes")
    (late,) = _leave_letters(stack, 1, label, first=2)
    _look_again(page)
    expect(page.locator(".letter-rows .row")).to_have_count(3)  # listed by now, but not when the question was shown
    dialog.get_by_role("button", name=deed).click()
    expect(page.locator(".bulk-status")).to_contain_text(done)
    assert late in {each["run_id"] for each in stack.get("/dlq", tag=label)["items"]}


@pytest.mark.parametrize("deed", ["Redrive", "Delete"])
def test_what_is_done_to_many_is_done_to_those_of_the_filter_that_was_typed(
    stack: Stack, page: Page, label: str, deed: str
) -> None:
    """Pressed at once after the last letter was typed, before anybody has looked for it."""
    (wanted,) = _leave_letters(stack, 1, label)
    _leave_letters(stack, 1, f"{label}-other")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(f"{request.method} {request.url} {request.post_data}"))
    page.goto("/#/letters")
    many = page.locator(".letters-letters > .row-actions button", has_text=deed)
    dialog = page.get_by_role("dialog")
    many.click()
    expect(dialog).to_contain_text("affects ALL dead letters")
    dialog.get_by_role("button", name="Back").click()

    type_and_press = """([name, text, deed]) => {
        const field = document.querySelector(`input[name=${name}]`);
        const many = [...document.querySelectorAll('.letters-letters > .row-actions button')];
        field.value = text;
        field.dispatchEvent(new InputEvent('input', { bubbles: true }));
        many.find((each) => each.textContent.includes(deed)).click();
        return [many.map((each) => each.ariaDisabled), document.querySelector('dialog[open]') !== null];
      }"""
    # Part of a run's id is no filter: nothing can be done as if the field were empty.
    assert page.evaluate(type_and_press, ["run_id", wanted[:8], deed]) == [["true", "true"], False]
    expect(page.locator(".letters .filters")).to_contain_text("Enter the full run id to search.")
    _look_again(page)
    expect(many).to_be_disabled()
    page.locator("input[name=run_id]").fill("")
    expect(many).to_be_enabled()

    assert page.evaluate(type_and_press, ["tag", label, deed]) == [["true", "true"], False]
    assert page.evaluate("location.hash") == f"#/letters?tag={label}"  # taken when it was pressed
    expect(many).to_have_text(f"{deed} all 1")
    many.click()
    expect(dialog.locator(".facts")).to_have_text(f"Tag{label}")
    dialog.get_by_role("button", name=deed).click()
    expect(page.locator(".bulk-status")).to_contain_text("1.")
    deeds = [each for each in sent if "/dlq" in each and not each.startswith("GET")]
    assert len(deeds) == 1
    assert label in deeds[0]
    assert len(stack.get("/dlq", tag=f"{label}-other")["items"]) == 1


def test_a_command_that_would_be_refused_is_not_shown(page: Page) -> None:
    """The command line takes no empty flow."""
    letter = {"id": "7", "timestamp": 1.0, "reason": "invalid_job", "error": "x"}
    intercept(page, "**/dlq?*", lambda route: route.fulfill(json={"items": [letter], "next_cursor": None}))
    group = {"reason": "invalid_job", "flow_name": None, "count": 1, "newest_at": 1.0}
    intercept(page, "**/dlq/counts", lambda route: route.fulfill(json={"total": 1, "groups": [group]}))
    page.goto("/#/letters")
    command = page.locator(".letters > div > .command")
    expect(command).to_contain_text("dlq counts")
    page.locator(".group").click()
    page.get_by_role("button", name="Delete all 1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".facts")).to_contain_text("(flow unknown)")
    expect(dialog.locator(".command")).to_have_count(0)
    expect(command).to_have_count(0)


def test_what_fits_a_filter_is_loaded_page_by_page(stack: Stack, page: Page, label: str) -> None:
    """The page asks for 50 at a time: on the way that becomes 2, and the cursors are the gateway's own."""
    _leave_letters(stack, 5, label)

    def shorten(route: Paused) -> None:
        route.continue_(url=route.request.url.replace("limit=50", "limit=2"))

    intercept(page, "**/dlq?*", shorten)
    page.goto(f"/#/letters?tag={label}")
    expect(page.locator(".letter-rows .row")).to_have_count(2)
    page.get_by_role("button", name="Load more").click()
    expect(page.locator(".letter-rows .row")).to_have_count(4)
    page.get_by_role("button", name="Load more").click()
    expect(page.locator(".letter-rows .row")).to_have_count(5)
    expect(page.get_by_role("button", name="Load more")).to_have_count(0)

    def shown() -> list[int]:
        texts = page.locator(".letter-rows .letter-error").all_inner_texts()
        return [int(text.split(f"{label}-")[1].split()[0].strip("'\".,:")) for text in texts]

    assert page.evaluate("document.querySelector('.letter-rows').contains(document.activeElement)")
    _leave_letters(stack, 1, label, first=5)
    _look_again(page)
    expect(page.locator(".letter-rows .row")).to_have_count(6)  # it joins what was loaded
    assert shown()[0] == 5
    # So many at once that a page does not reach down to what was loaded: that goes, rather than to leave a gap.
    _leave_letters(stack, 3, label, first=6)
    _look_again(page)
    expect(page.locator(".letter-rows .row")).to_have_count(2)
    for n in (4, 6, 8, 9):
        page.get_by_role("button", name="Load more").click()
        expect(page.locator(".letter-rows .row")).to_have_count(n)
    ids = [int(each["id"]) for each in stack.get("/dlq", tag=label)["items"]]
    assert ids == sorted(ids, reverse=True)
    runs = [stack.get(f"/runs/{each['run_id']}") for each in stack.get("/dlq", tag=label)["items"]]
    assert shown() == [int(run["params"]["card"].rsplit("-", 1)[1]) for run in runs]


def test_a_letter_of_an_address_is_shown_though_the_list_leaves_it_out(stack: Stack, page: Page, label: str) -> None:
    _leave_letters(stack, 1, label)
    letter_id = stack.get("/dlq", tag=label)["items"][0]["id"]
    page.goto(f"/#/letters?tag=another&letter={letter_id}")
    expect(page.locator(".letter-rows .row.open")).to_contain_text(f"{label}-0")


def test_a_late_answer_does_not_pull_anybody_back(stack: Stack, page: Page, label: str) -> None:
    (run_id,) = _leave_letters(stack, 1, label)
    held: list[Paused] = []
    intercept(page, "**/dlq/*/redrive", held.append)
    page.goto(f"/#/letters?tag={label}")
    row = page.locator(".letter-rows .row")
    row.get_by_role("button", name="charge_cards").click()
    row.get_by_role("button", name="Redrive").click()
    until(lambda: (page.evaluate("0"), held)[1], what="the request")
    page.get_by_label("Tag").fill("half a word")
    page.goto("/#/queues")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    held[0].continue_()
    told = page.locator(".toast a")
    expect(told).to_contain_text("Redriven")
    page.evaluate("new Promise((done) => setTimeout(done, 400))")  # later than what was typed would be taken
    assert page.evaluate("location.hash") == "#/queues"
    told.click()
    page.wait_for_url("**/#/runs/*")
    assert stack.get(f"/runs/{page.url.rsplit('/', 1)[-1]}")["rerun_of"] == run_id


def test_the_focus_of_a_chip_that_goes_is_passed_on(stack: Stack, page: Page, label: str) -> None:
    _leave_letters(stack, 1, label)
    page.goto(f"/#/letters?reason=execution_error&flow=charge_cards&tag={label}")
    chips = page.locator(".letters .chip")
    expect(chips).to_have_count(3)
    chips.nth(1).focus()
    page.keyboard.press("Enter")
    expect(chips).to_have_count(2)
    expect(chips.nth(1)).to_be_focused()
    expect(chips.nth(1)).to_contain_text(label)
    page.keyboard.press("Enter")
    expect(chips).to_have_count(1)
    field = page.locator("input[name=tag]")
    expect(field).to_be_focused()
    expect(field).to_have_value("")


def test_typing_leaves_no_steps_behind_and_the_way_back_is_shown(stack: Stack, page: Page, label: str) -> None:
    _leave_letters(stack, 1, label)
    page.goto("/#/letters?tag=before")
    page.evaluate("location.hash = '#/letters'")
    field = page.locator("input[name=tag]")
    expect(field).to_have_value("")
    steps = page.evaluate("history.length")
    for text in (label[:-1], label):
        field.fill(text)
        expect(page).to_have_url(f"{stack.address}/#/letters?tag={text}")
    expect(page.locator(".letter-rows .row")).to_have_count(1)
    assert page.evaluate("history.length") == steps
    # A word that is still being put together is not looked for.
    page.evaluate(
        """async () => {
            const field = document.querySelector('input[name=tag]');
            field.value = 'ばっち';
            field.dispatchEvent(new InputEvent('input', { bubbles: true, isComposing: true }));
            await new Promise((done) => setTimeout(done, 450));
            window.meanwhile = location.hash;
            field.value = 'バッチ';
            field.dispatchEvent(new CompositionEvent('compositionend', { bubbles: true }));
          }"""
    )
    assert page.evaluate("window.meanwhile") == f"#/letters?tag={label}"
    expect(page).to_have_url(f"{stack.address}/#/letters?tag={quote('バッチ')}")
    expect(field).to_be_focused()
    page.go_back()
    expect(field).to_have_value("before")
