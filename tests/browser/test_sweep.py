"""The page of a sweep in the browser, and what the list of runs shows on request."""

from __future__ import annotations

import csv
import io
from typing import Any

from playwright.sync_api import Page, expect

from support.servers import unique
from support.stacks import Stack


def a_sweep(stack: Stack) -> tuple[str, list[str]]:
    """Two runs that wait and one that has failed, with one label. The failed one comes last."""
    label = unique("sweep")
    params: list[dict[str, Any]] = [{"fold": 1}, {"fold": "=1+1"}]
    ids = [stack.submit("train_model", each, tag="nobody", tags=[label]) for each in params]
    failed = stack.submit("charge_cards", {"card": "4111"}, tags=["default", label])
    stack.until_status(failed, "FAILED")
    return label, [*ids, failed]


def test_a_sweep_shows_its_progress_and_repeats_what_failed(stack: Stack, page: Page) -> None:
    label, ids = a_sweep(stack)
    page.goto(f"/#/runs?tag={label}")
    page.locator(f".runs-row[data-id='{ids[-1]}'] .runs-label").first.click()  # of a failed run, too
    page.get_by_role("link", name="Sweep", exact=True).click()
    expect(page.get_by_role("heading", name=f"Sweep: {label}")).to_be_visible()
    expect(page.locator(".sweep [role=status]").first).to_have_text("1 of 3 runs ended (33 %)")
    rows = page.locator(".sweep tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("charge_cards")
    expect(rows.nth(1)).to_contain_text("fold==1+1")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    assert download.value.suggested_filename == f"{label}.csv"
    table = list(csv.DictReader(io.StringIO(download.value.path().read_text(), newline="")))
    assert {row["run_id"] for row in table} == set(ids)
    assert {row["params.fold"] for row in table} == {"1", "'=1+1", ""}
    page.get_by_role("button", name="Run failed ones again").click()
    page.locator("dialog").get_by_role("button", name="Run again").click()
    expect(page.locator(".toast").last).to_contain_text("1 new run submitted")
    expect(rows).to_have_count(4)
    assert len(stack.get("/runs", tag=label, limit=200)) == 4


def test_the_params_of_runs_are_a_column_on_request(stack: Stack, page: Page) -> None:
    label, ids = a_sweep(stack)
    page.goto(f"/#/runs?tag={label}")
    row = page.locator(f".runs-row[data-id='{ids[0]}']")
    expect(row).to_be_visible()
    expect(page.get_by_role("columnheader", name="Params")).to_be_hidden()
    page.get_by_role("button", name="Params").click()
    expect(row.locator(".runs-params")).to_have_text("fold=1")
    row.get_by_role("checkbox").click()
    bulk = page.get_by_role("region", name="Selected runs")
    expect(bulk.get_by_role("button", name="Cancel")).to_be_visible()
    row.get_by_role("checkbox").click()
    page.locator(f".runs-row[data-id='{ids[-1]}']").get_by_role("checkbox").click()
    expect(bulk.get_by_role("button", name="Run again")).to_be_visible()
    expect(bulk.get_by_role("button", name="Cancel")).to_be_hidden()  # it has ended
    page.get_by_role("button", name="Params").click()
    expect(page.get_by_role("columnheader", name="Params")).to_be_hidden()
