"""The page about the API, and what pages of other origins can do, in a real browser."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from playwright.sync_api import Page, expect

from support.routes import intercept
from support.stacks import Stack

JSON = "application/json"


def test_the_page_about_the_api_loads_nothing_from_elsewhere_and_sends_requests(page: Page, stack: Stack) -> None:
    """SAFE-10: under the policy of the dashboard, whose violations fail every test here."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/docs")
    expect(page.locator("h1")).to_contain_text("API")
    page.get_by_role("searchbox").fill("post submit named")
    shown = page.locator("details.docs-item:visible", has_text="/runs")
    shown.locator("summary").first.click()
    flow = f"docs-{uuid.uuid4().hex[:8]}"
    page.get_by_role("textbox", name="Body").fill(f'{{"flow_name": "{flow}"}}')
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".docs-answer:visible")).to_contain_text("run_id")
    assert [run["flow_name"] for run in stack.ask("GET", f"/runs?flow={flow}").json()] == [flow]
    assert [url for url in asked if not url.startswith(f"{stack.address}/")] == []


def test_a_page_of_another_port_cannot_submit(page: Page, stack: Stack, expects_trouble: Callable[..., None]) -> None:
    """SAFE-10: neither by a request that needs no permission, nor by a form."""
    expects_trouble(r"40[0-9]", r"ERR_FAILED", r"CORS")
    elsewhere = "http://127.0.0.1:9999/"
    intercept(page, elsewhere, lambda route: route.fulfill(content_type="text/html", body="<!doctype html><body>x"))
    page.goto(elsewhere)
    flow = f"foreign-{uuid.uuid4().hex[:8]}"
    body = f'{{"flow_name": "{flow}", "params": {{"a": "="}}}}'
    post = "([url, init]) => fetch(url, { method: 'POST', ...init }).catch(() => null)"
    for init in ({"mode": "no-cors"}, {"mode": "no-cors", "keepalive": True}, {"headers": {"Content-Type": JSON}}):
        page.evaluate(post, [f"{stack.address}/runs", {"body": body, **init}])  # the page never sees the answer
    form = """([url, body]) => {
        const form = document.createElement("form");
        Object.assign(form, { method: "POST", action: url, enctype: "text/plain" });
        const field = document.createElement("input");
        [field.name, field.value] = body.split("=");
        form.append(field);
        document.body.append(form);
        form.submit();
    }"""
    with page.expect_navigation():
        page.evaluate(form, [f"{stack.address}/runs", body])
    expect(page.locator("body")).to_contain_text("ERR-PYOCO-0002")
    assert stack.ask("GET", f"/runs?flow={flow}").json() == []
