"""The result of a priced run on its page: readable for people, harmless whatever is in it, and its tenant's alone."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from support.browsers import check
from support.pretended_runs import RUN_ID, a_run, pretend
from support.priced import pack_envelopes
from support.routes import Paused, intercept
from support.stacks import Stack, until

KEY = "pyoco_0123456789abcdef_of-the-tenant"
COST = {"reserved_usd_micros": 250_000, "used_usd_micros": 50_000, "minimum_fee_usd_micros": 5_000}


def a_pack(**more: Any) -> dict[str, Any]:
    return a_run(
        **{
            "kind": "pack",
            "flow_name": "decision",
            "tags": [],
            "status": "COMPLETED",
            "worker_id": None,
            "attempt_id": None,
            "tenant_id": "acme",
            "end_time": 1_770_000_000.0,
            "pack_type": "decision",
            "priced_status": "COMPLETED",
            "money_state": "SETTLED",
            "finalizing": False,
            "reason_code": None,
            "cost": COST,
            "tokens_consumed": 42,
            "timebox_sec": 90,
            "min_reliability_score": 0.8,
            "trace_id": "t_1",
        }
        | more
    )


class Results:
    """A gateway that has this result, for who shows the key."""

    def __init__(self, page: Page) -> None:
        self.envelope: Any = {}
        self.status = 200
        self.asked = 0
        self.page = page

    def serve(self, **run: Any) -> None:
        """The run, and then what lies beside it: the route that was added last is asked first."""
        pack = a_pack(**run)
        pretend(self.page, pack, lambda _: [pack])
        intercept(self.page, re.compile(f"/v1/runs/{RUN_ID}/envelope"), self._answer)
        intercept(self.page, re.compile(f"/v1/runs/{RUN_ID}$"), self._tell)

    def _answer(self, route: Paused) -> None:
        self.asked += 1
        if route.request.headers.get("x-api-key") != KEY:
            route.fulfill(status=401, json={"reason_code": "AUTH_INVALID", "detail": "A valid API key is needed."})
        elif self.status != 200:
            route.fulfill(status=self.status, json={"reason_code": "X", "detail": "no"})
        else:
            body = self.envelope if isinstance(self.envelope, str) else json.dumps(self.envelope)
            route.fulfill(body=body, content_type="application/json; charset=utf-8")

    def _tell(self, route: Paused) -> None:
        files = [
            {"name": "ocr.md", "presigned_url": "http://127.0.0.1:1/v1/results/a-token"},
            {"name": "ocr.docx", "presigned_url": "https://store.invalid/bucket/ocr.docx?signature=1"},
        ]
        route.fulfill(json={"status": "COMPLETED", "result": {"artifacts": files}})

    def open(self, envelope: Any, **run: Any) -> Locator:
        """The section of the page that shows it."""
        is_new = RUN_ID not in self.page.url
        if is_new:
            self.page.add_init_script(f"sessionStorage.setItem('pyoco.key', '{KEY}')")
        self.envelope = envelope
        self.serve(**run)
        if is_new:
            self.page.goto(f"/#/runs/{RUN_ID}")
        else:
            self.page.reload()
        return self.page.locator(".run-envelope")


@pytest.fixture
def results(page: Page) -> Results:
    return Results(page)


def check_for_everybody(page: Page) -> None:
    """Names to be read aloud, headings in order, contrast, nothing that was obeyed, no page that scrolls sideways."""
    expect(page.locator("main .skeleton")).to_have_count(0)
    for question in ("nameless", "twins", "faint", "obeyed"):
        assert check(page, question) == [], question
    levels = check(page, "headings")
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels)), levels
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"


def test_what_is_in_an_envelope_is_read_with_care(module_page: Page) -> None:
    """Nothing hides in a text, only addresses of the web become links, and no mark of a reading is lost."""
    ask = """([texts, addresses, signed, page, readings]) => import('/static/lib/envelope.js').then((m) => [
        texts.map(m.plain), addresses.map(m.webAddress), signed.map((each) => m.signedAddress(each, page)),
        readings.map(m.piecesOf), m.movedTo({ $artifact: 'a' }), m.movedTo({ $artifact: 'a', b: 1 }), m.movedTo(null),
        [0, 1, '0.9900', '7', NaN, null, true].map(m.share),
        m.failedFirst([{ id: 1, passed: true }, { id: 2, passed: false }, 7, { id: 4, passed: true }])])"""
    addresses = [
        "https://a.example/x",
        "HTTP://a.example",
        "javascript:alert(1)",
        "https://u:p@a.example",
        "//a",
        "x",
        7,
    ]
    signed = [
        "/v1/results/t.s",
        "http://here.example:81/v1/results/t.s",
        "https://s3.example/b?x=1",
        "javascript:1",
        None,
    ]
    readings = ["ab cd(?) [□](?)\nはじめて(?)", "", "(?)"]
    found = module_page.evaluate(
        ask, [["a\x00\u202eb\n\tc", None, {"a": 1}], addresses, signed, "https://here.example/p/?q=1#/runs/x", readings]
    )
    assert found[0] == ["a\\u0000\\u202eb\n\tc", "", '{"a":1}']
    assert found[1] == ["https://a.example/x", "http://a.example/", None, None, None, None, None]
    own = {"href": "https://here.example/p/v1/results/t.s", "isOwn": True}
    assert found[2] == [own, own, {"href": "https://s3.example/b?x=1", "isOwn": False}, None, None]
    for reading, pieces in zip(readings, found[3], strict=True):
        assert "".join(piece["text"] for piece in pieces) == reading
    assert [(piece["text"], piece["kind"]) for piece in found[3][0] if piece["kind"] != "plain"] == [
        ("cd(?)", "doubt"),
        ("[□]", "unreadable"),
        ("(?)", "doubt"),
        ("はじめて(?)", "doubt"),
    ]
    assert found[4:7] == ["a", None, None]
    assert found[7] == [0, 1, 0.99, None, None, None, None]
    assert [each["id"] if isinstance(each, dict) else each for each in found[8]] == [2, 7, 1, 4]


def test_an_answer_and_pages_are_shown_with_what_was_left_out(page: Page, results: Results) -> None:
    section = results.open(pack_envelopes.decision())
    expect(section).to_contain_text("Ship on Friday: the tests are green")
    expect(section.locator("meter")).to_have_attribute("value", "0.834")
    for words in ("83%", "met (requested: 80%)", "Other output of the pack", "evidence"):
        expect(section).to_contain_text(words)
    section = results.open(pack_envelopes.url(), pack_type="url")
    rows = section.get_by_role("region", name="Pages").locator("tbody tr")
    expect(rows).to_have_count(5)
    expect(rows.nth(0)).to_contain_text("Page 0: how the pump is serviced")
    links = rows.nth(0).locator("a")
    expect(links).to_have_count(2)
    for at, address in enumerate(("https://example.com/0", "https://www.example.com/0")):
        expect(links.nth(at)).to_have_attribute("href", address)
        expect(links.nth(at)).to_have_attribute("rel", "noreferrer noopener")
    expect(rows.nth(1)).to_contain_text("cut at 2 MB")
    rows.nth(0).locator("summary").click()
    expect(rows.nth(0).locator("details")).to_contain_text("The pump has to be serviced every six months.")
    for words in (
        "Left out (3)",
        "not https NON_HTTPS",
        "OF_A_NEWER_PACK",
        "Blocked (1)",
        "10.0.0.7",
        "a private address",
    ):
        expect(section).to_contain_text(words)
    check_for_everybody(page)


@pytest.mark.usefixtures("own_context")
def test_pages_that_were_read_show_their_doubts_and_files_are_fetched_fresh(page: Page, results: Results) -> None:
    section = results.open(pack_envelopes.ocr(), pack_type="ocr")
    opened = section.locator(".env-page[open]")
    expect(opened).to_have_count(3)
    expect(opened.nth(0).locator(".env-doubt")).to_have_text(["청구서(?)", "本日はご来店(?)"])
    expect(opened.nth(0).locator(".env-unreadable")).to_have_text(["[□]"])
    section.locator(".env-page summary").last.press("Enter")
    expect(opened).to_have_count(4)
    for words in ("61%", "Check the spelling", "tesseract", "fine_print", "not met (requested: 80%)", "4 KiB"):
        expect(section).to_contain_text(words)
    with page.expect_download() as fetched:
        section.get_by_role("button", name="ocr.md").click()
    assert fetched.value.suggested_filename == "ocr.md"
    assert fetched.value.url == f"{page.url.split('#')[0]}v1/results/a-token"
    page.context.route(re.compile("store.invalid"), lambda route: route.fulfill(body="there"))
    with page.context.expect_page() as elsewhere:
        section.get_by_role("button", name="ocr.docx").click()
    elsewhere.value.wait_for_url(re.compile("store.invalid"))
    assert elsewhere.value.evaluate("[opener, document.referrer]") == [None, ""]
    section.get_by_role("button", name="Copy the SHA-256").first.click()
    expect(page.locator(".toast")).to_have_count(1)
    check_for_everybody(page)


def test_verdicts_scores_and_strangers_packs_are_shown_however_long_they_are(page: Page, results: Results) -> None:
    section = results.open(pack_envelopes.compliance(), pack_type="compliance")
    expect(section.locator(".env-verdict")).to_have_text("failed")
    expect(section.locator("tbody tr")).to_have_count(4)
    section = results.open(pack_envelopes.evaluation(), pack_type="eval")
    expect(section.locator(".env-score")).to_contain_text("990 of 1,000 passed")
    expect(section.locator("tbody tr")).to_have_count(100)
    expect(section.locator("tbody tr").nth(0)).to_contain_text("case-99")
    expect(section.locator("tbody tr .money-bad")).to_have_count(10)
    section.get_by_role("button", name="Show 100 more").click()
    expect(section.locator("tbody tr")).to_have_count(200)
    expect(section).to_contain_text("200 of 1,000 are shown")
    section = results.open(pack_envelopes.foreign(), pack_type="parts_finder")
    for words in ("Three parts fit.", "items: 250", "12345678901234567890", "not-there.json"):
        expect(section).to_contain_text(words)
    expect(section.get_by_role("button", name="drawings.json")).to_have_count(2)
    section.get_by_text("items: 250").click()
    expect(section.locator(".env-tree .env-tree > li")).to_have_count(100 + 1)
    section.get_by_role("button", name="Raw JSON").click()
    expect(section.locator("pre")).to_contain_text('"pack_type": "parts_finder"')
    with page.expect_download() as fetched:
        section.get_by_role("button", name="Download JSON").click()
    assert json.loads(fetched.value.path().read_bytes()) == pack_envelopes.foreign()


def test_whatever_a_pack_writes_is_text_and_leaves_the_page_usable(page: Page, results: Results) -> None:
    section = results.open(pack_envelopes.odd(), pack_type="url")
    expect(section.locator("tbody tr").first).to_contain_text(pack_envelopes.MARKUP)
    expect(section).to_contain_text("\\u202e")
    expect(section.locator("a")).to_have_count(0)
    check_for_everybody(page)
    page.set_viewport_size({"width": 380, "height": 900})
    page.locator(".language").click()
    expect(section.locator("tbody tr").first).to_contain_text(pack_envelopes.MARKUP)
    check_for_everybody(page)
    huge = pack_envelopes.envelope("x", {f"member {at}": "w" * 1000 for at in range(1000)})
    section = results.open(huge, pack_type="x")
    expect(section.locator(".env-tree > li")).to_have_count(100)
    section = results.open("no JSON at all")
    expect(section).to_contain_text("Download JSON" if page.locator("html").get_attribute("lang") == "en" else "JSON")


def test_without_a_key_it_asks_for_one_and_says_why_it_cannot_show_it(
    page: Page, results: Results, expects_trouble: Callable[..., None]
) -> None:
    """Authentication is off here: everybody sees the run, and its tenant alone sees what came of it."""
    expects_trouble(r"40[14]", r"503", r"429")
    results.envelope = pack_envelopes.decision()
    results.serve()
    page.goto(f"/#/runs/{RUN_ID}")
    section = page.locator(".run-envelope")
    expect(section).to_contain_text("Enter an API key of tenant acme")
    assert results.asked == 0
    check_for_everybody(page)
    section.locator("input").fill("pyoco_wrong")
    section.locator("input").press("Enter")
    expect(section).to_contain_text("The key was refused")
    assert page.evaluate("sessionStorage.getItem('pyoco.key')") is None
    results.status = 404
    section.locator("input").fill(KEY)
    section.get_by_role("button", name="Show the result").click()
    expect(section).to_contain_text("not a key of tenant acme")
    for status, words in ((503, "cannot be read at the moment"), (429, "Too many requests")):
        results.status = status
        if status == 503:
            section.locator("input").fill(KEY)
            section.get_by_role("button", name="Show the result").click()
        else:
            section.get_by_role("button", name="Try again").click()
        expect(section).to_contain_text(words)
    results.status = 200
    section.get_by_role("button", name="Try again").click()
    expect(section).to_contain_text("Ship on Friday")
    section.get_by_role("button", name="Forget the key").click()
    expect(section).to_contain_text("Enter an API key")
    assert page.evaluate("sessionStorage.getItem('pyoco.key')") is None


def test_a_run_that_failed_says_why_in_words_and_what_it_cost(page: Page, results: Results) -> None:
    detail = f"PAGE_UNREADABLE: page 3 {pack_envelopes.MARKUP}"
    section = results.open(
        {}, status="FAILED", priced_status="FAILED", reason_code="PACK_FAILED", error=f"PACK_FAILED: {detail}"
    )
    failure = page.locator(".run-error-card")
    for words in ("The pack ended with an error.", "PACK_FAILED", detail, "$0.0500 was charged"):
        expect(failure).to_contain_text(words)
    expect(section).to_be_hidden()
    assert results.asked == 0
    check_for_everybody(page)


def test_a_real_result_is_read_with_the_key_of_its_tenant(
    stack: Stack, page: Page, expects_trouble: Callable[..., None]
) -> None:
    """SAFE-5: without it there is no such run"""
    expects_trouble("404")
    tenant = f"team-{uuid.uuid4().hex[:8]}"
    key = stack.make_key(tenant)
    stack.credit(tenant, "1.0000")
    body = {
        "pack_type": "decision",
        "inputs": {"question": "Ship on Friday?"},
        "reservation": {"max_cost_usd": "0.2500"},
    }
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": f"key-{tenant}"}
    run_id = stack.ask("POST", "/v1/runs", json=body, headers=headers).json()["run_id"]
    until(
        lambda: stack.ask("GET", f"/v1/runs/{run_id}", headers=headers).json()["status"] == "COMPLETED", what="its end"
    )
    page.goto(f"/#/runs/{run_id}")
    expect(page.locator(".nothing")).to_contain_text("Priced runs need an API key of their tenant.")
    page.get_by_role("button", name="Enter a key").click()
    prompt = page.locator("dialog.key-prompt")
    prompt.get_by_label("Key").fill(f"{key}x")
    prompt.get_by_role("button", name="Use this key").click()
    expect(prompt).to_contain_text("does not accept this key")
    prompt.get_by_label("Key").fill(key)
    prompt.get_by_role("button", name="Use this key").click()
    section = page.locator(".run-envelope")
    stored = stack.ask("GET", f"/v1/runs/{run_id}/envelope", headers=headers).json()
    expect(section).to_contain_text(stored["data"]["answer_text"])
    expect(page.locator(".run-pack")).to_contain_text("$0.2500")
