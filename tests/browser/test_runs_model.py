"""What the list of runs decides without a gateway: order, merging, lengths of bars, words for a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

LIST = "import('/static/lib/run_list.js')"
FILTER = "import('/static/lib/run_filter.js')"


def run(run_id: str, submitted_at: float, updated_at: float, status: str = "RUNNING") -> dict[str, Any]:
    return {"run_id": run_id, "submitted_at": submitted_at, "updated_at": updated_at, "status": status}


def shown(page: Page, batches: list[list[Any]], status: str | None = None, rows_max: int = 100) -> dict[str, Any]:
    """What is shown after these answers, in their order."""
    told: dict[str, Any] = page.evaluate(
        f"""async ([batches, status, rowsMax]) => {{
          const {{ RunList }} = await {LIST};
          const list = new RunList(status ? {{ status }} : {{}}, rowsMax);
          const changes = batches.map((items) => list.merge(items));
          const rows = list.rows.map((row) => [row.run_id, row.status]);
          const placed = list.rows.every((row, index) => list.indexOf(row.run_id) === index);
          return {{ rows, changes, placed, full: list.full, known: list.byId.size, text: JSON.stringify(list.rows) }};
        }}""",
        [batches, status, rows_max],
    )
    assert told["placed"]
    assert told["known"] == len(told["rows"])
    return told


def test_a_row_keeps_its_place_however_often_its_run_changes(module_page: Page) -> None:
    """FLOW-190: merged by run_id. The gateway's order is by change, the eye's by submission."""
    first = [run("c", 3, 30), run("a", 1, 20), run("b", 2, 10)]
    told = shown(module_page, [first, [run("a", 1, 40, "COMPLETED"), run("d", 4, 39)]])
    assert told["rows"] == [["d", "RUNNING"], ["c", "RUNNING"], ["b", "RUNNING"], ["a", "COMPLETED"]]
    assert told["changes"][1] == {"added": 1, "newer": 1, "removed": []}


def test_an_old_run_that_changes_comes_in_at_its_own_place(module_page: Page) -> None:
    told = shown(module_page, [[run("c", 3, 30), run("a", 1, 20)], [run("b", 2, 40)]])
    assert [row[0] for row in told["rows"]] == ["c", "b", "a"]
    assert told["changes"][1]["newer"] == 0


def test_all_that_came_are_counted_however_many_pages_they_fill(module_page: Page) -> None:
    """A walk begins with the newest page: what the next ones bring is below that, and new all the same."""
    pages = [[run(str(at), at, at) for at in range(top, top - 200, -1)] for top in (1000, 800, 600)]
    told = module_page.evaluate(
        """async ([first, pages]) => {
          const { RunList } = await import('/static/lib/run_list.js');
          const { RunSync } = await import('/static/views/runs_sync.js');
          const list = new RunList({});
          const newer = [];
          const apply = (change) => newer.push(change().newer);
          const sync = new RunSync(list, { needs: () => ({ rows: 600, ids: [] }), apply, tell: () => 0 });
          const walk = (all) => {
            const left = [...all];
            sync.page = async () => ({ items: left.shift(), next_cursor: left.length > 0 ? 'more' : null });
            return sync.reload();
          };
          await walk([first]);
          await walk(pages);
          return newer;
        }""",
        [[run(str(at), at, at) for at in range(450, 400, -1)], pages],
    )
    assert told == [0, 200, 200, 150]


def test_a_run_that_leaves_the_status_leaves_the_list(module_page: Page) -> None:
    """FLOW-250: the refresh returns all that changed, whatever its status is now."""
    first = [run("a", 1, 10), run("b", 2, 11)]
    told = shown(module_page, [first, [run("a", 1, 12, "COMPLETED"), run("x", 9, 12, "FAILED")]], "RUNNING")
    assert told["rows"] == [["b", "RUNNING"]]
    assert told["changes"][1]["removed"] == ["a"]


def test_an_end_is_not_taken_back_by_an_answer_that_lags(module_page: Page) -> None:
    """FLOW-19"""
    told = shown(module_page, [[run("a", 1, 12, "COMPLETED")], [run("a", 1, 11, "RUNNING")]])
    assert told["rows"] == [["a", "COMPLETED"]]


def test_no_more_rows_are_kept_than_there_may_be(module_page: Page) -> None:
    told = shown(module_page, [[run(str(at), at, at) for at in range(8)], [run("new", 99, 99)]], rows_max=5)
    assert [row[0] for row in told["rows"]] == ["new", "7", "6", "5", "4"]
    assert told["full"]


def test_what_is_no_run_is_passed_over_and_long_texts_are_cut(module_page: Page) -> None:
    odd = [None, 7, "run", {}, {"run_id": 5, "updated_at": 1}, {"run_id": "no-instant"}]
    strange = {**run("a", 1, 2), "tags": "none", "flow_name": 7, "error": "e" * 10_000, "start_time": "soon"}
    told = shown(module_page, [[*odd, strange]])
    assert [row[0] for row in told["rows"]] == ["a"]
    assert len(told["text"]) < 1_000


@pytest.mark.parametrize(
    ("top", "count", "expected"),
    [(0, 1000, (0, 10)), (-500, 1000, (0, 5)), (1005, 1000, (10, 21)), (1e9, 1000, (1000, 1000)), (0, 0, (0, 0))],
)
def test_the_rows_on_the_screen_are_found(module_page: Page, top: float, count: int, expected: tuple[int, int]) -> None:
    found = module_page.evaluate(
        "([top, count]) => import('/static/lib/virtual.js')"
        ".then((m) => m.rowsOnScreen({ top, screen: 1000, rowHeight: 100, count }))",
        [top, count],
    )
    assert (found["first"], found["last"]) == expected


@pytest.mark.usefixtures("own_context")
def test_rows_that_fly_by_are_filled_where_they_are_and_put_in_order_afterwards(module_page: Page) -> None:
    """Taking elements out and putting them back is what makes scrolling slow. The one with the focus is never moved."""
    told = module_page.evaluate(
        """async () => {
          const { VirtualRows } = await import('/static/lib/virtual.js');
          const body = document.getElementById('app');
          const items = Array.from({ length: 1000 }, (_, at) => ({ run_id: String(at) }));
          let made = 0;
          const make = () => { made += 1; const element = document.createElement('button'); return { element }; };
          const rows = new VirtualRows(body, make, (row, item) => { row.element.textContent = item.run_id; });
          rows.rowHeight = 10;
          const shown = () => [...body.children].map((each) => Number(each.textContent));
          rows.draw(items, { first: 0, last: 20 }, -1);
          rows.order();
          rows.draw(items, { first: 30, last: 50 }, -1);
          const moves = new MutationObserver(() => 0);
          moves.observe(body, { childList: true });
          const before = made;
          for (const first of [35, 60, 300, 310]) rows.draw(items, { first, last: first + 20 }, -1);
          const moved = moves.takeRecords().length + made - before;
          rows.shown.get('312').element.focus();
          const focused = document.activeElement;
          rows.order();
          const ordered = shown();
          rows.draw(items, { first: 700, last: 720 }, 312);
          rows.order();
          const kept = document.activeElement === focused && focused.textContent;
          return { moved, ordered, pinned: shown()[0], kept, top: focused.style.transform };
        }"""
    )
    assert told["moved"] == 0
    assert told["ordered"] == list(range(307, 338))
    assert (told["pinned"], told["kept"], told["top"]) == (312, "312", "translateY(3120px)")


def test_bars_share_one_scale_that_one_long_run_does_not_spoil(module_page: Page) -> None:
    """Wait is start minus submission; bars of running runs grow; the scale fits most rows and does not jump."""
    told = module_page.evaluate(
        """async () => {
          const { barOf, scaleOf, timesOf } = await import('/static/lib/run_bars.js');
          const rows = Array.from({ length: 99 }, () => ({ submitted_at: 100, start_time: 104, end_time: 109 }));
          const scale = scaleOf([...rows, { submitted_at: 0, start_time: 1, end_time: 90_000 }], 200, 1);
          const times = timesOf(rows[0], 200);
          return {
            scale, times, bar: barOf(times, scale), kept: scaleOf(rows, 200, 20),
            waits: timesOf({ submitted_at: 150 }, 200), runs: timesOf({ submitted_at: 100, start_time: 150 }, 200),
            long: barOf({ wait: 10, run: 30, live: false }, 20), unknown: timesOf({}, 200),
          };
        }"""
    )
    assert told["scale"] == 10
    assert told["times"] == {"wait": 4, "run": 5, "live": False}
    assert told["bar"] == {"wait": 0.4, "run": 0.5, "over": False}
    assert told["kept"] == 20, "half full: bars stay as they are"
    assert told["waits"] == {"wait": 50, "run": None, "live": True}
    assert told["runs"] == {"wait": 50, "run": 50, "live": True}
    assert told["long"] == {"wait": 0.25, "run": 0.75, "over": True}
    assert told["unknown"] is None


def test_all_that_match_can_be_cancelled_only_where_the_filter_says_so(module_page: Page) -> None:
    """Neither what has ended nor what is found by its id: the gateway knows no such filter, and must not stop more."""
    bodies = module_page.evaluate(
        f"""async () => {{
          const {{ cancelBody }} = await {FILTER};
          return [{{}}, {{ tag: 'gpu', status: 'PENDING' }}, {{ status: 'FAILED' }}, {{ flow: 'a', run_id: 'abcd' }}]
            .map((filter) => cancelBody(filter, 7));
        }}"""
    )
    assert bodies == [
        {"all": True, "submitted_before": 7, "limit": 1000},
        {"tag": "gpu", "status": "PENDING", "submitted_before": 7, "limit": 1000},
        None,
        None,
    ]


def test_the_command_for_a_terminal_quotes_what_a_shell_would_read(module_page: Page) -> None:
    command = module_page.evaluate(
        f"""{FILTER}.then((m) => m.listCommand(m.readFilter(new URLSearchParams(
          {{ flow: "it's $HOME", tag: 'a', kind: 'pack', other: 'x', q: 'two words' }}))))"""
    )
    quoted = """--search 'two words' --flow 'it'"'"'s $HOME'"""
    assert command == f"pyoco-client list {quoted} --tag a --kind pack --output table"


def test_a_command_names_the_gateway_unless_the_client_finds_it_by_itself(module_page: Page) -> None:
    commands = module_page.evaluate(
        """import('/static/lib/parts.js').then((m) => [
          'http://127.0.0.1:8000/#/runs', 'http://localhost:8000/', 'https://example.com/pyoco/?a#/runs/b/c',
          'http://127.0.0.1:8001/'].map((page) => m.clientCommand('pyoco-client list', page)))"""
    )
    assert commands == [
        "pyoco-client list",
        "pyoco-client list",
        "pyoco-client --server https://example.com/pyoco list",
        "pyoco-client --server http://127.0.0.1:8001 list",
    ]
    other = "import('/static/lib/parts.js').then((m) => m.clientCommand('curl x', 'https://example.com/'))"
    assert module_page.evaluate(other) == "curl x"


def test_a_row_says_no_more_than_a_line_of_the_list_knows(module_page: Page) -> None:
    """Of a run that was taken over it knows the last start only, so what was before is not called waiting. The tag is
    shown once."""
    words = module_page.evaluate(
        """async () => {
          const { RunRow } = await import('/static/views/runs_row.js');
          const run = { run_id: 'a', status: 'COMPLETED', updated_at: 99, rank: 1, submitted_at: 1, end_time: 99 };
          return [{ start_time: 81, tag: 'gpu', tags: ['gpu', 'night'] }, { tag: 'gpu', tags: ['gpu'] }].map((more) => {
            const row = new RunRow(true);
            row.show({ ...run, ...more }, { index: 0, selected: false, active: false, scale: 10 });
            return [row.waited.textContent, row.note.textContent, row.note.hidden];
          });
        }"""
    )
    assert words == [["start after 1 m 20 s", "night", False], ["waited 1 m 38 s", "", True]]


def test_a_silent_run_is_marked_stale_beside_its_status(module_page: Page) -> None:
    """FLOW-30, FLOW-31, FLOW-252"""
    words = module_page.evaluate(
        """async () => {
          const { RunRow } = await import('/static/views/runs_row.js');
          const now = Date.now() / 1000;
          return [100, 1].map((silence) => {
            const row = new RunRow(true);
            const run = { run_id: 'a', status: 'RUNNING', updated_at: now, rank: now, heartbeat_at: now - silence };
            row.show(run, { index: 0, selected: false, active: false, scale: 10 });
            return [...row.element.querySelectorAll('.badge')].map((badge) => badge.textContent);
          });
        }"""
    )
    assert words == [["Running", "Stale"], ["Running"]]
