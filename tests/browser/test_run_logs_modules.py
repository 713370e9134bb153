"""What lines of a log become, and which of them are kept: the modules alone."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page


def test_only_colours_and_weight_are_read_of_what_is_meant_for_a_terminal(module_page: Page) -> None:
    """LOG-4: everything else is shown, character by character"""
    texts = {
        "plain": [("plain", None)],
        "\x1b[1;31mbold red\x1b[22m red\x1b[39m none": [
            ("bold red", "ansi-bold ansi-ink-1"),
            (" red", "ansi-ink-1"),
            (" none", None),
        ],
        "\x1b[97;104mbright\x1b[m.": [("bright", "ansi-ink-15 ansi-ground-12"), (".", None)],
        "\x1b[38;5;9mtable\x1b[38;5;196mcube\x1b[38;5;244mgrey\x1b[48:2::1:2:300mown": [
            ("table", "ansi-ink-9"),
            ("cube", "rgb(255 0 0)"),
            ("grey", "rgb(128 128 128)"),
            ("own", "rgb(128 128 128) rgb(1 2 255)"),
        ],
        "a\x1b[2Jb\x1b]0;t\x07\x9b31m\u2028\x1b[31": [
            ("a", None),
            (r"\x1b", None),
            ("[2Jb", None),
            (r"\x1b", None),
            ("]0;t", None),
            (r"\x07\x9b", None),
            ("31m", None),
            (r"\u2028\x1b", None),
            ("[31", None),
        ],
        "\x1b[58;5;1;4mkept\x1b[38;5m\x1b[48;9mon": [("kept", "ansi-underline"), ("on", "ansi-underline ansi-ink-0")],
        "tab\tstays": [("tab\tstays", None)],
    }
    script = """async (texts) => {
      const { piecesOf } = await import('/static/lib/ansi.js');
      const named = ({ classes, ink, ground }) => [...classes, ink, ground].filter(Boolean).join(' ');
      const told = (each) => [each.text, each.look === null ? null : named(each.look)];
      return texts.map((text) => piecesOf(text).map(told));
    }"""
    found: list[list[list[Any]]] = module_page.evaluate(script, list(texts))
    for (text, expected), pieces in zip(texts.items(), found, strict=True):
        assert [tuple(each) for each in pieces] == expected, repr(text)
    many = "\x1b[31mx\x1b[32my" * 5000
    count, joined = module_page.evaluate(
        """async (text) => { const { piecesOf } = await import('/static/lib/ansi.js');
             const pieces = piecesOf(text); return [pieces.length, pieces.map((each) => each.text).join('')] }""",
        many,
    )
    assert (count <= 1001, joined) == (True, "xy" * 5000)


def test_a_window_keeps_neighbours_and_as_many_as_it_may(module_page: Page) -> None:
    found = module_page.evaluate(
        """async () => {
          const { LogWindow } = await import('/static/lib/log_window.js');
          const line = (attempt, seq, text = '') => ({ id: `${attempt}.${seq}`, attempt, seq, text });
          const lines = (from, to) => Array.from({ length: to - from }, (_, at) => line(1, from + at));
          const told = (window) => [window.lines.map((each) => each.id).join(' '), window.hasEarlier, window.hasLater];
          const small = new LogWindow({ lines: 4, characters: 10_000 });
          const steps = [];
          small.append(lines(1, 4)); steps.push(told(small));
          small.append([line(1, 3), line(1, 4), line(2, 1)]); steps.push(told(small));
          small.prepend([line(1, 1), line(1, 2)]); steps.push(told(small));
          small.append(lines(4, 20)); steps.push(told(small));
          const narrow = new LogWindow({ lines: 100, characters: 1000 });
          narrow.append([line(1, 1), line(1, 2, 'x'.repeat(900)), line(1, 3, 'x'.repeat(900))]);
          steps.push(told(narrow));
          return steps;
        }"""
    )
    assert found == [
        ["1.1 1.2 1.3", False, False],
        ["1.2 1.3 1.4 2.1", True, False],
        ["1.1 1.2 1.3 1.4", True, True],
        ["1.16 1.17 1.18 1.19", True, True],
        ["1.3", True, False],
    ]


def test_an_address_that_was_typed_asks_for_nothing_odd(module_page: Page) -> None:
    found = module_page.evaluate(
        """async () => {
          const { queryOf, readPlaceOf, placeOf } = await import('/static/lib/log_filter.js');
          const read = (text) => readPlaceOf(new URLSearchParams(text));
          const all = { task: '-', attempt: 3, level: 'ERROR', streams: ['stderr', 'log'], search: 'a b' };
          const kept = Object.fromEntries(Object.entries(placeOf(all)).filter(([, value]) => value !== null));
          return [
            queryOf(read('log_attempt=0&log_level=loud&log_stream=system,x&log_task=&other=1')),
            read('log_search=' + 'x'.repeat(300)).search.length, read(new URLSearchParams(kept)), queryOf(all),
          ];
        }"""
    )
    filters = {"task": "-", "attempt": 3, "level": "ERROR", "streams": ["stderr", "log"], "search": "a b"}
    query = [["task", "-"], ["attempt", "3"], ["level", "ERROR"], ["search", "a b"]]
    assert found == [[], 200, filters, [*query, ["stream", "stderr"], ["stream", "log"], ["stream", "system"]]]


def test_last_lines_do_not_begin_with_a_gap_if_there_are_lines_between(module_page: Page) -> None:
    """LOG-9, LOG-17: otherwise the page before would be the one before that gap"""
    found = module_page.evaluate("""async () => {
      const { LogSource } = await import('/static/lib/log_source.js');
      const source = new LogSource('x');
      const gap = { id: '1.3', event: 'gap' };
      const last = async (lines, hasMore) => {
        source.page = async () => ({ lines, hasMore, isOff: false });
        return (await source.last({}, undefined, new AbortController().signal)).lines.map((line) => line.id);
      };
      const [one, other] = [{ id: '1.9' }, { id: '1.4' }];
      return [await last([gap, one, gap], true), await last([gap, other], false), await last([], false)];
    }""")
    assert found == [["1.9", "1.3"], ["1.3", "1.4"], []]
