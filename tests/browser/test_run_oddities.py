"""The page of a run when the run, the gateway or the page itself is not as it should be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from support.pretended_runs import RUN_ID, a_run, pretend, pretend_log
from support.routes import Paused, intercept
from support.stacks import until

LONG = 12345678901234567890123
ODD = 2**53 + 1


def test_a_damaged_run_says_so_and_is_shown_once_it_is_whole(page: Page, expects_trouble: Callable[..., None]) -> None:
    expects_trouble("500")
    run = a_run(status="COMPLETED")
    damaged = {"err_id": "ERR-PYOCO-0025", "message": "A stored record is damaged.", "message_ja": "壊れています。"}
    address = re.compile(f"/runs/{RUN_ID}(\\?|$)")
    intercept(page, address, lambda route: route.fulfill(status=500, json=damaged))
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator("main .nothing")).to_contain_text("A stored record is damaged. (ERR-PYOCO-0025)")
    expect(page.locator("main .skeleton")).to_have_count(0)
    pretend_log(page, lambda _: [])
    intercept(page, address, lambda route: route.fulfill(json=run))  # the newer one counts
    expect(page.locator(".run-head .badge.status-completed")).to_be_visible()
    expect(page.locator("main .nothing")).to_have_count(0)


def test_values_of_an_odd_type_are_shown_as_text(page: Page) -> None:
    """FLOW-259"""
    odd = {name: {"toString": 5} for name in ("flow_name", "cancel_reason", "tenant_id", "rerun_of", "kind", "tag")}
    numbers = {"workflow_yaml_sha256": 5, "api_key_id": 7, "attempt": "two", "tags": [{"toString": 5}, 8]}
    more = {"waiting": None, "last_change": {"what": 3, "by": {"kind": "worker", "id": {"toString": 5}}}}
    pretend(page, a_run(**odd, **numbers, **more, status="COMPLETED"), lambda _: [])
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator("main h1")).to_have_text('{"toString":5}')
    expect(page.locator(".run-head .facts a", has_text=re.compile("^5$"))).to_have_attribute("title", "5")
    waiting = {"reason": "no_worker", "message": 5, "oldest_ahead": {"run_id": 4, "age_seconds": 9}}
    pretend(page, a_run(status="PENDING", worker_id=None, waiting=waiting), lambda _: [])
    page.goto("/#/queues")
    expect(page).to_have_title("Queues · pyoco")
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator(".run-waiting a")).to_have_text("4")
    expect(page.locator(".run-defect")).to_have_count(0)


def test_a_part_that_fails_leaves_the_others_live(page: Page, expects_trouble: Callable[..., None]) -> None:
    expects_trouble("page error: .*spilt")
    steps: list[dict[str, Any]] = [{"tasks": {"a": "RUNNING"}}, {"status": "COMPLETED"}]
    going = {"go": False}
    pretend(page, a_run(params={"kept": 1}), lambda _: [steps.pop(0)] if going["go"] and steps else [])
    page.goto(f"/#/runs/{RUN_ID}")
    expect(page.locator(".run-aside .json")).to_contain_text("kept")
    main = page.locator("script[type=module]").get_attribute("src") or ""
    for module, name in (("run_aside", "ParamsSection"), ("run_head", "RunHead")):
        method = "show" if module == "run_aside" else "showFacts"
        page.evaluate(
            f"""import('/{main.replace("main.js", f"views/{module}.js")}').then((m) => {{
              const kept = m.{name}.prototype.{method};
              m.{name}.prototype.{method} = function (run) {{
                if (run.status === 'RUNNING') throw new Error('spilt {name}');
                kept.call(this, run);
              }} }})"""
        )
    going["go"] = True
    expect(page.locator(".run-defect")).to_have_count(2)
    expect(page.locator(".run-defect").first).to_contain_text("cannot be shown")
    expect(page.locator(".run-aside .json")).to_be_hidden()
    expect(page.locator(".run-head .badge.status-completed")).to_be_visible()
    expect(page.locator(".run-defect")).to_have_count(0)
    expect(page.locator(".run-aside .json")).to_contain_text("kept")
    expect(page.locator(".run-head .facts")).to_be_visible()


def test_running_again_is_sent_under_one_key_and_pulls_nobody_away(
    page: Page, expects_trouble: Callable[..., None]
) -> None:
    """Pressed again after a lost answer, it is the same run; a user who has left the page gets a link."""
    expects_trouble("ERR_FAILED")
    pretend(page, a_run(status="FAILED"), lambda _: [])
    sent: list[Paused] = []
    intercept(page, re.compile("/rerun$"), sent.append)
    page.goto(f"/#/runs/{RUN_ID}")
    button = page.get_by_role("dialog").get_by_role("button", name="Run again")

    def press() -> str:
        number = len(sent)
        if page.locator("dialog[open]").count() == 0:
            page.locator("main").get_by_role("button", name="Run again").click()
        button.click()
        until(lambda: page.evaluate("1") and len(sent) > number)
        return sent[-1].request.headers["idempotency-key"]

    first = press()
    sent[-1].abort()
    expect(page.locator("dialog [role=alert]")).to_contain_text("did not answer")
    expect(button).not_to_have_attribute("aria-busy", "true")
    page.keyboard.press("Escape")
    assert press() == first, "also when the dialog was closed in between"
    page.evaluate("location.hash = '#/queues'")
    expect(page.locator("main h1")).to_have_text("Queues")
    sent[-1].fulfill(json={"run_id": "new-run", "status": "PENDING"})
    link = page.locator(".toast a")
    expect(link).to_have_attribute("href", "#/runs/new-run")
    assert page.evaluate("location.hash") == "#/queues"
    page.goto(f"/#/runs/{RUN_ID}")
    assert press() != first
    sent[-1].fulfill(status=409, json={"err_id": "ERR-PYOCO-0001", "message": "It is not kept."})
    expects_trouble("409", "404")
    expect(page.locator("dialog [role=alert]")).to_contain_text("It is not kept.")
    expect(page.locator("dialog textarea")).to_have_attribute("readonly", "")
    press()
    sent[-1].fulfill(json={"run_id": "newer-run", "status": "PENDING"})
    page.wait_for_function("() => location.hash === '#/runs/newer-run'")


def test_why_a_run_waits_is_read_aloud_once(page: Page) -> None:
    """Its place in the queue changes often; screen readers do not announce each change."""
    run = a_run(status="PENDING", worker_id=None)
    counted = {"answers": 0, "reason": "queue"}

    def tell(route: Paused) -> None:
        counted["answers"] += 1  # type: ignore[operator]
        words = f"{counted['reason']}, {counted['answers']} ahead"
        route.fulfill(json=run | {"waiting": {"reason": counted["reason"], "message": words}})

    pretend(page, run, lambda _: [])
    intercept(page, re.compile(f"/runs/{RUN_ID}(\\?|$)"), tell)
    page.goto(f"/#/runs/{RUN_ID}")
    spoken = page.locator(".run-waiting [role=status]")
    expect(spoken).to_have_text("queue, 1 ahead")
    expect(page.locator(".run-wait-words")).to_have_text(re.compile("queue, [3-9] ahead"))
    expect(spoken).to_have_text("queue, 1 ahead")
    expect(page.locator(".run-waiting [aria-live]")).to_have_count(0)
    counted["reason"] = "no worker"
    expect(spoken).to_have_text(re.compile("no worker, "))


def test_long_numbers_keep_every_digit(page: Page, module_page: Page) -> None:
    """In what was given, what came out, what is copied and what is sent; read once and from events."""
    values = {"id": LONG, "small": 5, "list": [ODD, -ODD], "float": 0.30000000000000004, "text": str(LONG)}
    run = a_run(params=values, tasks={"a": "SUCCEEDED"}, task_records={"a": {"output": ODD}})
    ends = {"status": "COMPLETED", "params": values | {"id": LONG + 1}}
    going = {"go": False}
    pretend(page, run, lambda _: [ends] if going["go"] else [])
    page.goto(f"/#/runs/{RUN_ID}?task=a")
    params = page.locator(".run-aside .json pre").last
    for digits in (LONG, ODD, -ODD, 0.30000000000000004):
        expect(params).to_contain_text(str(digits))
    expect(page.locator(".run-record pre")).to_have_text(str(ODD))
    going["go"] = True
    expect(params).to_contain_text(str(LONG + 1))
    found = module_page.evaluate(
        """async ([text, plain]) => {
          const { parseJson, keepsDigits } = await import('/static/lib/numbers.js');
          const api = await import('/static/lib/api.js');
          let body;
          globalThis.fetch = async (_, init) => { body = init.body; return new Response('{}'); };
          await api.send('POST', 'runs', { params: parseJson(text) });
          const read = parseJson(text);
          return [keepsDigits, body, `${read.long}`, typeof read.exact, parseJson(plain)];
        }""",
        [f'{{"long":{LONG},"exact":9007199254740992,"below":-9007199254740991}}', '{"at":1760000000.1234567}'],
    )
    sent = f'{{"params":{{"long":{LONG},"exact":9007199254740992,"below":-9007199254740991}}}}'
    assert found == [True, sent, str(LONG), "number", {"at": 1760000000.1234567}]
