"""Wheels: brought by hand, refused in plain words, fetched and deleted."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Locator, Page, Request, expect

from support.routes import Paused, intercept
from support.stacks import Stack, until
from support.wheels import build_wheel


@pytest.fixture
def package() -> str:
    return f"tasks{uuid.uuid4().hex[:8]}"


def _give(page: Page, name: str, content: bytes) -> Locator:
    """Choose a file; gives the line about it."""
    file: FilePayload = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    page.locator('input[type="file"]').set_input_files([file])
    return page.locator(".upload-line").first


def test_a_wheel_is_uploaded_fetched_and_deleted(stack: Stack, page: Page, package: str, tmp_path: Path) -> None:
    name, content = build_wheel(package, "1.0", pad_bytes=200_000)
    page.goto("/#/wheels")
    page.get_by_label("For tags").fill("gpu, night")
    expect(_give(page, name, content)).to_contain_text("Registered.")
    row = page.locator(".row", has_text=package)
    expect(row).to_contain_text("1.0")
    expect(row.locator(".cell-tags")).to_contain_text("gpunight")
    expect(row.locator(".cell-uploaded")).to_contain_text("from 127.0.0.1")
    expect(row.locator(".cell-workers")).to_contain_text("no worker for its tags")
    expect(page.locator(".sync-note")).to_contain_text("None of the live workers (1) installs wheels:")
    with page.expect_download() as downloading:
        row.get_by_role("button", name="Download").click()
    downloading.value.save_as(tmp_path / "fetched.whl")
    assert (tmp_path / "fetched.whl").read_bytes() == content
    assert downloading.value.suggested_filename == name

    row.get_by_role("button", name=f"Delete {name}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    history = page.locator(".history li", has_text=name)
    expect(history).to_have_count(2)
    expect(history.first).to_contain_text("Deleted")


def test_refusals_are_told_in_the_words_of_the_gateway(
    stack: Stack, page: Page, package: str, expects_trouble: Callable[..., None]
) -> None:
    expects_trouble("409", "422")
    name, content = build_wheel(package, "2.0")
    stack.ask("POST", "/wheels", files={"wheel": (name, content)})
    page.goto("/#/wheels")
    older, older_content = build_wheel(package, "1.0")
    line = _give(page, older, older_content)
    expect(line).to_contain_text("not newer")
    expect(line).to_contain_text(f"{name} is registered, and 1.0 is not newer")
    line = _give(page, f"{package}-3.0-py3-none-any.whl", b"not a zip archive")
    expect(line).to_contain_text("Refused.")
    expect(line.locator(".troubles li")).not_to_have_count(0)
    expect(_give(page, "notes.txt", b"hello")).to_contain_text("the file name must end in .whl. Nothing was sent.")
    assert [each["name"] for each in stack.get("/wheels") if package in each["name"]] == [name]


def test_a_wheel_is_dropped_anywhere_on_the_page(stack: Stack, page: Page, package: str) -> None:
    name, content = build_wheel(package, "1.0")
    page.goto("/#/wheels")
    expect(page.locator(".dropzone")).to_be_visible()
    page.evaluate(
        """([name, text]) => {
            const data = new DataTransfer();
            data.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
            const event = (kind) => new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
            document.querySelector('h1').dispatchEvent(event('dragover'));
            window.wasOver = document.querySelector('.dropzone').matches('.over');
            document.querySelector('h1').dispatchEvent(event('drop'));
          }""",
        [name, base64.b64encode(content).decode()],
    )
    assert page.evaluate("window.wasOver")
    expect(page.locator(".upload-line").first).to_contain_text("Registered.")
    expect(page.locator(".row", has_text=package)).to_be_visible()
    assert name in {each["name"] for each in stack.get("/wheels")}


def test_files_that_wait_go_out_under_nobody_elses_key(
    locked: Stack, new_page: Callable[..., Page], package: str, expects_trouble: Callable[..., None]
) -> None:
    ours, theirs = locked.make_key("team-a"), locked.make_key("team-b")
    page = new_page(locked)
    expects_trouble("ERR_ABORTED", "403")
    held: list[Paused] = []
    sent: list[Request] = []
    page.on("request", lambda request: sent.append(request) if request.method == "POST" else None)
    intercept(
        page, "**/wheels", lambda route: held.append(route) if route.request.method == "POST" else route.continue_()
    )

    def enter(key: str) -> None:
        page.locator("dialog input").fill(key)
        page.locator("dialog").get_by_role("button").click()

    page.goto("/#/wheels")
    enter(ours)
    wheels = [build_wheel(f"{package}{n}", "1.0") for n in range(3)]
    files: list[FilePayload] = [
        {"name": name, "mimeType": "application/octet-stream", "buffer": content} for name, content in wheels
    ]
    page.locator('input[type="file"]').set_input_files(files)
    expect(page.locator(".upload-line")).to_have_count(3)
    until(lambda: (page.evaluate("0"), held)[1], what="the first upload")
    page.get_by_role("button", name="Forget the key").click()
    enter(theirs)
    expect(page.locator(".dropzone")).to_be_visible()
    with page.expect_request(lambda request: request.method == "POST"):  # what waited would be first
        name, content = build_wheel(f"{package}4", "1.0")
        _give(page, name, content)
    assert [request.headers["x-api-key"] for request in sent] == [ours, theirs]
    expect(page.locator(".upload-line")).to_have_count(1)
    assert f"{package}1" not in page.locator("body").inner_text()
    held[-1].continue_()
    expect(page.locator(".upload-line")).to_contain_text("Registered.")
