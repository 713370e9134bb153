"""Takes the pictures of the README and the docs anew: `make screenshots`.

A stack of its own with the demo flows, a made-up history of a working day, two workers, and the browser of the tests.
Every time there are other pictures, for clocks and ids differ: commit them only when the dashboard looks different.
"""

from __future__ import annotations

# ruff: noqa: E402, INP001  (a script, not a package)
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Whoever tests a browser has everything that is needed here.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from playwright.sync_api import Browser, Page, Route, expect
from tools.demo.history import an_hour_of_metrics, write_history
from tools.png import pack

from support.browsers import open_browser
from support.stacks import Stack, aside

IMAGES = ROOT / "docs" / "images"
BYTES_MAX = 200_000


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"worker_disconnect_timeout_sec": "6", "worker_heartbeat_interval_sec": "1"}
        stack = Stack(Path(folder), "--no-worker", **settings)
        try:
            stack.start()
            with workers(stack), open_browser() as browser:
                take_all(browser, stack, make_history(stack))
        finally:
            stack.stop()
    for path in sorted(IMAGES.glob("*.png")):
        pack(path)
        sys.stdout.write(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KiB\n")
        assert path.stat().st_size <= BYTES_MAX, f"{path.name} is too large to be read on the way"


@contextlib.contextmanager
def workers(stack: Stack) -> Iterator[None]:
    """Two that work, one that ended in order, and one that was killed."""
    command = [str(Path(sys.executable).parent / "pyoco-worker"), "--nats-url", stack.nats_url]
    command += ["--flow-resolver", "tools.demo.flows:resolve", "--slots"]
    started = [
        subprocess.Popen(  # noqa: S603  (our own words)
            [*command, slots, "--worker-id", name, "--tags", tags],
            env={**stack.environment(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name, slots, tags in (
            ("tokyo-1", "4", "default,reports"),
            ("tokyo-2", "4", "default,reports"),
            ("osaka-1", "2", "default"),
            ("osaka-2", "2", "default"),
        )
    ]
    try:
        wait(lambda: len(stack.get("/workers")) == len(started), "the workers")
        started[2].terminate()
        started[3].kill()
        ended = {"STOPPED_GRACEFUL", "DISCONNECTED"}
        wait(lambda: ended <= {each["state"] for each in stack.get("/workers", scope="all")}, "the end of two")
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def wait(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def make_history(stack: Stack) -> str:
    """Some hundred runs that have ended, and some that go on. Gives one that goes on."""
    aside(lambda: write_history(stack.nats_url, time.time()))
    for name in ("sync_inventory", "sync_inventory", "sync_stock"):
        stack.submit(name, tags=["default", "hourly"])  # nobody has these
    for at in range(4):
        submit_short(stack, at)
    for at in range(3):
        stack.submit("train_model", {"fold": at}, tag="gpu", tags=["gpu", "research"])  # and nobody serves this
    for model in ("churn", "fraud", "prices"):
        stack.submit("train_model", {"scale": 60, "model": model}, tags=["default", "research"])
    slow = stack.submit("train_model", {"scale": 60, "model": "demand"}, tags=["default", "research"])
    stack.until_status(slow, "RUNNING")
    stack.ask("POST", f"/runs/{slow}/cancel", json={"reason": "superseded by the model of today"})
    submit_short(stack, 4)
    report = {"day": "2026-11-14", "scale": 16}
    run_id = stack.submit("nightly_report", report, tag="reports", tags=["reports", "daily"])
    wait(lambda: stack.get(f"/runs/{run_id}")["tasks"].get("chart_returns") == "RUNNING", "the charts")
    return run_id


def submit_short(stack: Stack, number: int) -> None:
    """One that fails and one that does not, done before it returns: not all are to be of the same moment."""
    card = f"4111 **** {1000 + 77 * number}"
    failing = stack.submit("charge_cards", {"card": card, "scale": 2}, tags=["default", "billing"])
    folder = {"folder": "incoming", "scale": 9}
    stack.until_status(stack.submit("resize_images", folder, tags=["default", "thumbnails"]), "COMPLETED")
    stack.until_status(failing, "FAILED")


def take_all(browser: Browser, stack: Stack, run_id: str) -> None:
    take(browser, stack, "run", f"runs/{run_id}")
    take(browser, stack, "runs", "runs")
    take(browser, stack, "runs-ja", "runs", language="ja")
    take(browser, stack, "runs-dark", "runs", color_scheme="dark")
    take(browser, stack, "phone", "runs", width=380)
    take(browser, stack, "workers", "workers?scope=all")
    take(browser, stack, "letters", "letters")
    take(browser, stack, "metrics", "metrics")


def take(
    browser: Browser, stack: Stack, name: str, place: str, *, width: int = 1280, language: str = "en", **context: Any
) -> None:
    size: Any = {"width": width, "height": 800}
    made = browser.new_context(base_url=stack.address, viewport=size, reduced_motion="reduce", **context)
    made.add_init_script(f"localStorage.setItem('pyoco.language', '{language}')")
    page = made.new_page()
    page.route("**/metrics/recent*", answer_metrics)
    page.goto(f"/#/{place}")
    settle(page)
    # A browser without a window shows no scroll bar, and leaves an empty strip where it would be.
    page.evaluate("document.documentElement.style.scrollbarGutter = 'auto'")
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled", caret="hide")
    made.close()


def answer_metrics(route: Route) -> None:
    route.fulfill(json=an_hour_of_metrics(time.time()))


def settle(page: Page) -> None:
    """Until everything that was asked for is there, twice: some questions follow from answers."""
    expect(page.locator("main h1").first).to_be_visible()
    expect(page.locator("main .skeleton")).to_have_count(0)
    page.wait_for_timeout(1500)


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
