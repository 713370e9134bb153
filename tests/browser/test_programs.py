"""Programs on the dashboard: run, looked at, found among the dead letters, requeued, and their files fetched."""

from __future__ import annotations

import uuid
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from support.browsers import check, only_looks
from support.pretended_runs import RUN_ID, a_run, pretend
from support.routes import Paused, intercept
from support.stacks import Stack, until


def submit(stack: Stack, program: str, *args: str, **fields: str) -> str:
    """The run's id. `fields` are those of the form."""
    form = [("exec_name", program), *(("arg", each) for each in args), *fields.items()]
    answer = stack.ask("POST", "/jobs", files=[(name, (None, value)) for name, value in form])
    assert answer.status_code == 200, answer.text
    return str(answer.json()["run_id"])


@pytest.fixture
def client(stack: Stack) -> Iterator[str]:
    """A client id of this test. Its unfinished jobs are cancelled at the end."""
    name = f"client-{uuid.uuid4().hex[:8]}"
    yield name
    for run in stack.get("/runs", client_id=name, limit=200):
        stack.ask("POST", f"/runs/{run['run_id']}/cancel", json={})


def speak(page: Page, language: str) -> None:
    page.add_init_script(f"localStorage.setItem('pyoco.language', '{language}')")


def part(page: Page, title: str) -> Locator:
    return page.locator(f'section[aria-label="{title}"]')


@dataclass(frozen=True)
class Words:
    run: str
    program: str
    args: str
    files: str
    failed: str
    ended: str
    stdout: str
    stderr: str
    letter: str
    requeue: str
    completed: str
    archive: str


WORDS = {
    "en": Words(
        "Run a program",
        "Program",
        "Arguments, one per line",
        "Input files",
        "Failed",
        "The program exited with code 3.",
        "Standard output",
        "Standard error",
        "Dead letter",
        "Requeue",
        "Completed",
        "Download output.zip",
    ),
    "ja": Words(
        "プログラムを実行",
        "プログラム",
        "引数（1行に1つ）",
        "入力ファイル",
        "失敗",
        "プログラムは終了コード3で終了しました。",
        "標準出力",
        "標準エラー出力",
        "このrunのデッドレター",
        "再キュー",
        "完了",
        "output.zip をダウンロード",
    ),
}


@pytest.mark.parametrize("language", ["en", "ja"])
def test_a_failed_program_is_found_among_the_dead_letters_and_requeued(
    stack: Stack, page: Page, tmp_path: Path, language: str
) -> None:
    """P27, GRID-176"""
    say, mended, given = WORDS[language], tmp_path / "mended", tmp_path / "in.txt"
    given.write_text("kept\n")
    speak(page, language)
    page.goto("/#/programs")
    page.get_by_role("button", name=say.run).click()
    form = page.get_by_role("dialog")
    form.get_by_label(say.program, exact=True).fill("needs")
    form.get_by_label(say.args).fill(f"{mended}\n  two words\n\n")
    form.get_by_label(say.files).set_input_files(given)
    form.get_by_role("button", name=say.run).click()
    page.wait_for_url("**/#/runs/*")
    old = page.url.rsplit("/", 1)[-1]
    assert stack.get(f"/runs/{old}")["params"]["args"] == [str(mended), "  two words", ""]

    expect(page.locator(".run-name .badge")).to_have_text(say.failed)
    expect(page.locator("main")).to_contain_text(say.ended)
    expect(page.locator(".program-args code").nth(1)).to_have_text("  two words", use_inner_text=False)
    expect(page.locator(".program-files")).to_contain_text("in.txt")
    expect(part(page, say.stdout).locator("pre")).to_contain_text('<script>window.pwned = "stdout"</script><img src=x')
    expect(part(page, say.stderr).locator("pre")).to_contain_text("<b>not bold</b>")
    check_for_everybody(page)

    page.get_by_role("link", name=say.letter, exact=True).click()
    row = page.locator(".letter-rows .row")
    expect(row).to_have_count(1)
    row.locator(".opener").click()
    detail = row.locator(".row-detail")
    expect(detail).to_contain_text("EXIT_NONZERO")
    expect(detail.locator("details")).to_contain_text('"exec_name": "needs"')  # the whole record
    check_for_everybody(page)
    mended.touch()
    detail.get_by_role("button", name=say.requeue).click()

    page.wait_for_url(lambda url: "#/runs/" in url and old not in url)
    expect(page.locator(".run-name .badge")).to_have_text(say.completed)
    new = page.url.rsplit("/", 1)[-1]
    assert stack.get(f"/runs/{new}")["retry_of"] == old
    with page.expect_download() as download:
        page.get_by_role("button", name=say.archive).click()
    assert download.value.suggested_filename == f"{new}-output.zip"
    with zipfile.ZipFile(download.value.path()) as archive:
        assert archive.read("result.txt") == b"kept\n"
    assert stack.status(old) == "FAILED"
    assert check(page, "obeyed") == []


def check_for_everybody(page: Page) -> None:
    """Names to be read aloud, headings in order, contrast, nothing that was obeyed, no page that scrolls sideways."""
    for question in ("nameless", "twins", "faint", "obeyed"):
        assert check(page, question) == [], question
    levels = check(page, "headings")
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels)), levels
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    page.set_viewport_size({"width": 1280, "height": 900})


def test_the_panel_tells_what_waits_and_runs_and_a_cap_is_changed_by_keyboard(
    stack: Stack, page: Page, client: str
) -> None:
    """GRID-176: queues, clients and their caps, workers with credits, what the engine keeps, the numbers of 23.1."""
    stack.ask("PUT", f"/exec/clients/{client}", json={"cap": 1})
    runs = [submit(stack, "sleepn", "600", client_id=client) for _ in range(2)]
    stack.until_status(runs[0], "RUNNING")
    page.goto("/")
    expect(page.locator("main h1")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("e")
    line = part(page, "Clients").locator(".row", has_text=client)
    expect(line).to_contain_text("1 of 1")
    expect(part(page, "By program").locator(".row", has_text="sleepn")).to_be_visible()
    expect(part(page, "In flight").locator(f'a[href="#/runs/{runs[0]}"]')).to_be_visible()
    workers = part(page, "Program workers")
    expect(workers).to_contain_text("job.assign.")
    expect(workers).to_contain_text("NATS, with flows")
    expect(part(page, "Replication")).to_contain_text("PYOCO_EXEC")
    numbers = part(page, "Metrics")
    expect(numbers).to_contain_text("pyoco_exec_jobs_total")
    expect(numbers.locator(".program-number", has_text="Unreadable records")).to_contain_text("0")
    page.get_by_role("button", name="Show events").click()
    expect(page.locator(".program-event-list li", has_text=client).first).to_be_visible()

    page.goto(f"/#/runs/{runs[1]}")
    expect(part(page, "Why it is waiting")).to_contain_text(client)
    page.go_back()
    page.get_by_role("button", name=f"Change the cap of {client}").press("Enter")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(line).to_contain_text("2 of 2")

    page.goto(f"/#/runs/{runs[1]}")
    page.get_by_role("button", name="Cancel run").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("SIGTERM")
    dialog.get_by_role("button", name="Cancel run").click()
    expect(page.locator(".run-name .badge")).to_have_text("Cancelled")


def test_a_list_of_programs_is_narrowed_down_by_program_and_client(stack: Stack, page: Page, client: str) -> None:
    """GRID-176"""
    failed = submit(stack, "failn", "7", client_id=client)
    done = submit(stack, "calcA", "1", client_id=client)
    for run_id in (failed, done):
        stack.until_status(run_id, "FAILED", "COMPLETED")
    page.goto("/#/runs")
    program = page.get_by_label("Program")
    expect(program).to_be_hidden()
    page.get_by_label("Kind", exact=True).select_option("exec")
    page.get_by_label("Client").fill(client)
    page.get_by_label("Client").press("Enter")
    rows = page.locator(".runs-body [data-id]")
    expect(rows).to_have_count(2)
    expect(page.locator(f'[data-id="{failed}"]')).to_contain_text("attempt 1 · exit 7")
    expect(page.get_by_role("button", name="Cancel all matching")).to_be_hidden()  # the gateway has no such filter
    program.fill("calcA")
    program.press("Enter")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("attempt 1 · exit 0")
    assert page.evaluate("location.hash") == f"#/runs?kind=exec&exec=calcA&client_id={client}"
    expect(page.locator(".runs-command")).to_contain_text(f"list --kind exec --exec calcA --client-id {client}")
    page.get_by_label("Kind", exact=True).select_option("flow")  # a flow has neither
    assert page.evaluate("location.hash") == "#/runs?kind=flow"


def test_a_page_that_only_looks_offers_nothing_to_do(stack: Stack, page: Page, client: str) -> None:
    """GRID-176, FLOW-262"""
    run_id = submit(stack, "failn", "7", client_id=client)
    stack.ask("PUT", f"/exec/clients/{client}", json={"cap": 3})
    stack.until_status(run_id, "FAILED")
    only_looks(page)
    page.goto("/#/programs")
    expect(part(page, "Clients")).to_contain_text(client)
    for name in ("Run a program", f"Change the cap of {client}"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.goto(f"/#/runs/{run_id}")
    expect(page.get_by_role("link", name="Dead letter", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Download stderr.txt")).to_be_visible()  # that is looking
    for name in ("Requeue", "Run again"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)


def test_programs_are_looked_at_with_the_same_key_as_everything(
    locked: Stack, new_page: Callable[..., Page], expects_trouble: Callable[..., None]
) -> None:
    """GRID-176: what is for operators alone says so."""
    expects_trouble(r"status of 403")
    key = locked.make_key("team-programs")
    locked.headers = {"X-API-Key": key}
    run_id = submit(locked, "calcA")  # it stays queued: this worker has no programs
    page = new_page(locked)
    page.add_init_script(f"sessionStorage.setItem('pyoco.key', '{key}')")
    page.goto("/#/programs")
    expect(part(page, "By program").locator(".row", has_text="calcA")).to_be_visible()
    expect(part(page, "Metrics")).to_contain_text("pyoco_exec_dlq_messages")
    page.get_by_role("button", name="Show events").click()
    expect(page.locator(".program-events")).to_contain_text("operator")
    page.goto(f"/#/runs/{run_id}")
    page.get_by_role("button", name="Show events").click()  # those of one's own job are one's own
    expect(page.locator(".program-event-list")).to_contain_text("Queued")


def test_what_was_tried_before_is_told_with_its_reason(page: Page) -> None:
    """GRID-176: attempts and the history of states; odd values break nothing."""
    run = a_program(
        status="PENDING",
        attempt=3,
        lost=1,
        worker_id=None,
        not_before=1_770_000_100.0,
        earlier_attempts=[
            {"attempt": 1, "worker_id": "w1", "started_at": 1.0, "ended_at": 9.0, "why": "worker_down"},
            {"attempt": 2, "worker_id": "w2", "started_at": 20.0, "ended_at": 50.0, "why": "ack_timeout"},
            "odd",
        ],
        params={"args": ["", 7, "<b>x</b>"], "files": [{"name": "a.txt", "size": "odd"}, None], "timeout_sec": "odd"},
        artifacts="odd",
        stdout_tail=None,
    )
    pretend(page, run, lambda _: [run])
    page.goto(f"/#/runs/{RUN_ID}")
    history = part(page, "Attempts and states").locator("li")
    expect(history).to_have_count(4)
    expect(history.nth(1)).to_contain_text("The worker disconnected")
    expect(history.nth(2)).to_contain_text("No heartbeat for too long")
    expect(history.nth(3)).to_contain_text("Waiting for another attempt, not before")
    expect(page.locator(".program-args li")).to_have_text(["(empty)", "7", "<b>x</b>"])
    expect(page.locator(".program-files")).to_contain_text("a.txt")
    expect(page.get_by_role("button", name="Download stdout.txt")).to_be_hidden()
    expect(page.locator(".run-defect")).to_have_count(0)
    expect(page.locator(".run-head .facts")).not_to_contain_text("Running for")


def a_program(**more: Any) -> dict[str, Any]:
    return a_run(
        **{
            "kind": "exec",
            "flow_name": "exec:calcA",
            "exec_name": "calcA",
            "client_id": "clientA",
            "group": "default",
            "job_id": RUN_ID,
            "max_attempts": 5,
            "tag": "exec",
            "tags": ["exec", "calcA"],
            "tasks": {"exec": "PENDING"},
        }
        | more
    )


def test_what_is_typed_and_told_is_read_with_care(module_page: Page) -> None:
    """GRID-176: an argument is a line as it is; a figure is read whatever its labels hold."""
    found = module_page.evaluate(
        r"""() => import('/static/lib/programs.js').then((m) => {
            const figures = m.readFigures(['# HELP x', 'pyoco_exec_jobs_total{exec="a\\"b}",status="FAILED"} 2.0',
              'pyoco_exec_run_seconds_bucket{exec="a",le="1"} 4', 'pyoco_exec_dlq_messages 3.0', 'pyoco_runs 9',
            ].join('\n'));
            return [
              ['', '\n', 'a', 'a\n', 'a\r\n b \n\nc'].map(m.readArguments), Object.fromEntries(figures),
              [m.programOf('exec:a'), m.programOf('a'), m.programOf(7)],
              [...m.groupsOf({ groups: { g: 7, h: {} } }).keys()], m.groupsOf(null).size,
              m.leftBytes({ artifacts: [null, { name: 'x', size: 5 }] }, 'x'), m.freshJobId() !== m.freshJobId(),
              /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(m.freshJobId()),
            ];
          })"""
    )
    assert found == [
        [[], [""], ["a"], ["a"], ["a", " b ", "", "c"]],
        {
            "jobs_total": [{"labels": {"exec": 'a"b}', "status": "FAILED"}, "value": 2}],
            "dlq_messages": [{"labels": {}, "value": 3}],
        },
        ["a", None, None],
        ["h"],
        0,
        5,
        True,
        True,
    ]


def test_a_filter_never_asks_for_what_cannot_be_together(module_page: Page) -> None:
    """GRID-176: no more is cancelled than the list shows."""
    found = module_page.evaluate(
        """() => import('/static/lib/run_filter.js').then((m) => [
            m.withFilter({ kind: 'exec', flow: 'exec:a' }, 'exec', 'b'), m.withFilter({ exec: 'a' }, 'flow', 'f'),
            m.withFilter({ kind: 'exec', exec: 'a', client_id: 'c', tag: 't' }, 'kind', 'flow'),
            m.withFilter({ exec: 'a', status: 'FAILED' }, 'exec', undefined),
            m.cancelBody({ exec: 'a' }, 1), m.cancelBody({ kind: 'exec' }, 1),
            ...['client_id', 'group', 'job_id', 'run_id'].map((name) => m.cancelBody({ [name]: 'x' }, 1)),
          ])"""
    )
    assert found == [
        {"kind": "exec", "exec": "b"},
        {"flow": "f"},
        {"kind": "flow", "tag": "t"},
        {"status": "FAILED"},
        {"flow": "exec:a", "submitted_before": 1, "limit": 1000},
        {"kind": "exec", "submitted_before": 1, "limit": 1000},
        *[None] * 4,
    ]


def test_a_job_is_one_however_often_somebody_presses(
    stack: Stack, page: Page, client: str, expects_trouble: Callable[..., None]
) -> None:
    """GRID-155, GRID-176: the answer was lost, and the form says so; the same job is sent again, and found."""
    expects_trouble(r"ERR_FAILED|ERR_CONNECTION")
    asked: list[int] = []

    def lose_first(route: Paused) -> None:
        asked.append(1)
        answer = route.fetch()
        if len(asked) == 1:
            route.abort()
        else:
            route.fulfill(response=answer)

    intercept(page, "**/jobs", lose_first)
    page.goto("/#/programs")
    page.get_by_role("button", name="Run a program").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Program", exact=True).fill("no such name")
    form.get_by_role("button", name="Run a program").click()
    expect(form.get_by_role("alert")).to_contain_text("at most 64")
    form.get_by_label("Program", exact=True).fill("calcA")
    form.get_by_text("More").click()
    form.get_by_label("Client (its cap applies)").fill(client)
    form.get_by_role("button", name="Run a program").click()
    expect(form.get_by_role("alert")).to_contain_text("the job is submitted only once")
    until(lambda: len(stack.get("/runs", client_id=client)) == 1, what="the job")
    form.get_by_role("button", name="Run a program").click()
    page.wait_for_url("**/#/runs/*")
    assert len(stack.get("/runs", client_id=client)) == 1
