"""The frame around every view: navigation, the connection, defects, and access."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from support.browsers import Watched
from support.stacks import Stack, until

OFFLINE = ("ERR_INTERNET_DISCONNECTED", "ERR_FAILED")


def own(page: Page, module: str, then: str) -> Any:
    """Do something with a module as the page itself has it: at the address with the version."""
    main = page.locator("script[type=module]").get_attribute("src") or ""
    return page.evaluate(f"import('/{main.replace('main.js', module)}').then({then})")


def heard(page: Page, condition: Callable[[], bool]) -> None:
    """Wait for something that the browser's driver tells: it does so while it is asked."""
    until(lambda: page.evaluate("1") and condition())


def test_going_somewhere_moves_the_focus_to_its_heading(page: Page) -> None:
    """FLOW-247: also by keys and back again; opening the page does not move the focus."""
    page.goto("/#/queues")
    heading = page.locator("main h1")
    expect(heading).to_have_text("Queues")
    assert page.evaluate("document.activeElement === document.body")
    page.locator("nav.menu").get_by_role("link", name="Metrics").click()
    expect(heading).to_be_focused()
    expect(page).to_have_title("Metrics · pyoco")
    menu = page.locator("nav.menu")
    assert menu.evaluate("menu => menu.scrollWidth <= menu.clientWidth"), "the search leaves no room for the menu"
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(heading).to_have_text("Workers")
    expect(heading).to_be_focused()
    page.go_back()
    expect(page).to_have_title("Metrics · pyoco")
    page.goto("/#/no-such-panel")
    expect(heading).to_have_text("Page not found")
    page.keyboard.press("Tab")  # from the heading into what follows it
    expect(page.locator("main a")).to_be_focused()
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert page.url.endswith("#/no-such-panel")


def test_coming_back_one_is_where_one_was(page: Page) -> None:
    """However long the view takes to fill itself."""
    page.set_viewport_size({"width": 600, "height": 500})
    page.goto("/#/metrics")
    expect(page.locator("main section.chart")).to_have_count(5)
    page.evaluate("scrollTo(0, 600)")
    page.locator(".menu-opener").click()
    page.locator("nav.menu").get_by_role("link", name="Queues").click()
    expect(page).to_have_title("Queues · pyoco")
    assert page.evaluate("scrollY") == 0
    page.go_back()
    page.wait_for_function("() => Math.abs(scrollY - 600) < 3")
    page.locator(".language").click()
    expect(page.locator("main h1")).to_have_text("メトリクス")
    page.wait_for_function("() => Math.abs(scrollY - 600) < 3")


def test_language_and_colours_change_under_the_reader(page: Page) -> None:
    """FLOW-253: the place and the focus stay."""
    page.goto("/#/queues?tag=some")
    page.locator(".language").click()
    expect(page.locator("main h1")).to_have_text("キュー")
    expect(page.locator("html")).to_have_attribute("lang", "ja")
    expect(page.locator(".language")).to_be_focused()
    assert page.url.endswith("#/queues?tag=some")
    view = page.locator("main > *").element_handle()
    colours = page.get_by_role("button", name="配色")
    for theme in ("light", "dark", None):
        colours.click()
        assert page.evaluate("document.documentElement.dataset.theme ?? null") == theme
        expect(colours).to_be_focused()
    assert page.evaluate("(each) => each.isConnected", view), "the view was made anew for a colour"
    page.reload()
    expect(page.locator("main h1")).to_have_text("キュー")


def test_a_toast_takes_the_place_of_the_one_it_makes_untrue(page: Page) -> None:
    page.goto("/#/queues")
    colours = page.get_by_role("button", name="Colours")
    for words in ("light", "dark"):
        colours.click()
        expect(page.locator(".toast")).to_have_count(1)
        expect(page.locator(".toast")).to_contain_text(words)


@pytest.mark.usefixtures("own_context")
def test_copying_works_where_the_browser_has_no_clipboard_for_the_page(module_page: Page) -> None:
    """Over plain HTTP under a host's name; also from a dialog, outside of which nothing can be selected."""
    told = module_page.evaluate(
        """async () => {
          Object.defineProperty(navigator, 'clipboard', { value: undefined });
          const { copy } = await import('/static/lib/parts.js');
          const { toastRegion } = await import('/static/lib/toast.js');
          const copied = [];
          document.addEventListener('copy', () => copied.push(document.activeElement.value));
          const dialog = document.createElement('dialog');
          const button = document.createElement('button');
          dialog.append(button);
          document.body.append(dialog);
          await copy('a\\nb');
          dialog.showModal();
          button.focus();
          await copy('in a dialog');
          const left = document.querySelectorAll('textarea').length;
          return [copied, left, document.activeElement === button, toastRegion().textContent];
        }"""
    )
    assert told == [["a\nb", "in a dialog"], 0, True, "Copied"]


def test_a_phone_has_every_panel_in_a_menu_that_names_the_open_one(page: Page) -> None:
    page.set_viewport_size({"width": 380, "height": 700})
    page.goto("/#/letters")
    opener = page.locator(".menu-opener")
    expect(opener).to_have_text("Dead letters")
    links = page.locator("nav.menu a")
    expect(links.first).to_be_hidden()
    opener.click()
    for link in links.all():
        expect(link).to_be_in_viewport(ratio=1)
    page.keyboard.press("Escape")
    expect(links.first).to_be_hidden()
    opener.click()
    links.filter(has_text="Metrics").click()
    expect(opener).to_have_text("Metrics")
    expect(links.first).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_defect_is_told_once_and_reaches_the_console(
    page: Page, watched: Watched, expects_trouble: Callable[..., None]
) -> None:
    expects_trouble("page error: .*spilt")
    page.goto("/#/queues")
    expect(page.locator("main h1")).to_be_visible()
    page.evaluate("for (let n = 0; n < 3; n += 1) setTimeout(() => { throw new Error('spilt milk') })")
    page.evaluate("void Promise.reject(new Error('spilt tea'))")
    page.evaluate("void Promise.reject(new DOMException('left', 'AbortError'))")
    expect(page.locator(".toast.danger")).to_have_count(2)
    heard(page, lambda: sum("spilt" in line for line in watched.trouble) == 4)
    expects_trouble("page error: .*left")


@pytest.mark.usefixtures("own_context")
def test_without_a_network_the_page_says_so_asks_little_and_heals(
    page: Page, watched: Watched, expects_trouble: Callable[..., None]
) -> None:
    """FLOW-250"""
    expects_trouble(*OFFLINE)
    with page.expect_response("**/attention"):
        page.goto("/#/queues")
    page.context.set_offline(True)
    banner = page.locator(".connection")
    expect(banner).to_contain_text("does not answer", timeout=60_000)
    watched.requested.clear()
    heard(page, lambda: len(watched.requested) >= 3)
    assert {url.rpartition("/")[2] for url in watched.requested} == {"ready"}, "only one asks, and everybody waits"
    page.context.set_offline(False)
    expect(banner).to_be_hidden(timeout=60_000)
    expect(page.locator(".toast", has_text="Connected again")).to_be_visible()
    heard(page, lambda: any(url.endswith("/attention") for url in watched.requested))


@pytest.mark.usefixtures("own_context")
def test_a_slow_question_is_no_outage_while_others_are_answered(module_page: Page) -> None:
    """FLOW-250: it may wait inside of the browser, whose connections are few. A connection that is refused is plain."""
    found = module_page.evaluate("""async () => {
      const { answered, keepAsking, reach } = await import('/static/lib/connection.js');
      const until = async (condition) => { while (!condition()) await new Promise((next) => setTimeout(next, 10)); };
      const clock = performance.now.bind(performance);
      let [asked, late, error] = [0, 0, new DOMException('', 'TimeoutError')];
      performance.now = () => clock() + late;
      globalThis.fetch = async () => { asked += 1; throw error; };
      answered();
      keepAsking();
      await until(() => asked === 4);
      const told = [reach.value];
      late = 11_000;
      await until(() => reach.value !== 'ok');
      told.push(reach.value);
      globalThis.fetch = async () => new Response('{"nats": true}');
      await until(() => reach.value === 'ok');
      error = new TypeError('refused');
      asked = 0;
      globalThis.fetch = async () => { asked += 1; throw error; };
      answered();
      document.dispatchEvent(new Event('visibilitychange'));
      await until(() => reach.value !== 'ok');
      return [...told, reach.value, asked];
    }""")
    assert found == ["ok", "gateway", "gateway", 2]


@pytest.mark.usefixtures("own_context")
def test_who_has_no_key_is_asked_whatever_else_is_away(
    stack: Stack, page: Page, expects_trouble: Callable[..., None]
) -> None:
    """FLOW-258: the question stays through Escape and through an outage, which is still announced."""
    expects_trouble(*OFFLINE)
    page.goto("/#/queues")
    expect(page.locator("main h1")).to_be_visible()
    own(page, "lib/connection.js", "(m) => m.lock('refused')")
    prompt = page.locator("dialog.key-prompt")
    expect(prompt.get_by_role("alert")).to_contain_text("no longer accepts")
    expect(prompt.locator("input")).to_be_focused()
    expect(page.locator("main h1")).to_be_hidden()
    for _ in range(3):
        page.keyboard.press("Escape")
    expect(prompt).to_be_visible()
    page.context.set_offline(True)
    expect(page.locator(".connection")).to_contain_text("does not answer")
    expect(prompt).to_be_visible()
    prompt.locator("input").fill(stack.make_key("team-a"))
    prompt.get_by_role("button").click()
    expect(prompt.get_by_role("alert")).to_contain_text("could not be checked")
    page.context.set_offline(False)
    expect(page.locator(".connection")).to_be_hidden()
    expect(prompt).to_be_visible()
    prompt.get_by_role("button").click()
    expect(prompt).to_have_count(0)
    expect(page.locator("main h1")).to_be_visible()


@contextlib.contextmanager
def guessing(stack: Stack) -> Iterator[None]:
    """Another client at the same address tries keys, more at a time than the gateway holds back."""
    done = threading.Event()
    bad = {"X-API-Key": "pyoco_0000000000000000_guess"}

    def guess(client: httpx.Client) -> None:
        while not done.wait(0.1):
            client.get("/runs")

    with httpx.Client(base_url=stack.address, headers=bad, timeout=100) as client:
        guessers = [threading.Thread(target=guess, args=[client]) for _ in range(12)]
        for each in guessers:
            each.start()
        try:
            until(lambda: client.get("/runs").status_code == 429)
            yield
        finally:
            done.set()
            for each in guessers:
                each.join()


def test_too_many_wrong_keys_are_told_and_the_right_one_still_opens(
    fresh_stack: Callable[..., Stack], new_page: Callable[..., Page], expects_trouble: Callable[..., None]
) -> None:
    """FLOW-258, FLOW-263: failed attempts from the same address do not lock out the owner of a valid key."""
    expects_trouble("status of 403", "status of 429")
    stack = fresh_stack("--no-keeper", "--no-worker", http_auth_mode="api_key")
    key = stack.make_key()
    page = new_page(stack)
    page.goto("/#/queues")
    prompt = page.locator("dialog.key-prompt")

    def enter(text: str) -> None:
        prompt.locator("input").fill(text)
        prompt.locator("input").press("Enter")

    enter("schlüssel")
    expect(prompt.get_by_role("alert")).to_contain_text("characters that are not allowed")
    with guessing(stack):
        enter("pyoco_wrong")
        expect(prompt.get_by_role("alert")).to_contain_text(re.compile("Too many|does not accept"))
        enter(key)
        expect(prompt).to_have_count(0)
        expect(page.locator("main h1")).to_have_text("Queues")


@pytest.mark.usefixtures("own_context")
def test_an_answer_to_an_older_key_does_not_take_away_the_new_one(module_page: Page) -> None:
    """FLOW-258"""
    found = module_page.evaluate("""async () => {
      const names = ['api', 'session', 'connection'];
      const [api, session, connection] = await Promise.all(names.map((name) => import(`/static/lib/${name}.js`)));
      const refusal = () => new Response(JSON.stringify({ err_id: 'ERR-PYOCO-0015' }), { status: 403 });
      const answers = [];
      globalThis.fetch = () => new Promise((resolve) => answers.push(resolve));
      session.useKey('old');
      const old = api.get('runs').catch((error) => error.status);
      session.useKey('new');
      answers.pop()(refusal());
      const first = [await old, session.currentKey(), connection.connection.value];
      const now = api.get('runs').catch((error) => error.status);
      answers.pop()(refusal());
      return [first, [await now, session.currentKey(), connection.connection.value, connection.lockedFor]];
    }""")
    assert found == [[403, "new", "ok"], [403, None, "locked", "refused"]]


@pytest.mark.usefixtures("own_context")
def test_a_stream_tells_a_defect_of_its_listener_from_a_cut_and_hangs_up(module_page: Page) -> None:
    """FLOW-251"""
    found = module_page.evaluate("""async () => {
      const api = await import('/static/lib/api.js');
      let left = 0;
      const event = new TextEncoder().encode('event: snapshot\\ndata: {}\\n\\n');
      const serve = (more) => { globalThis.fetch = async () => new Response(new ReadableStream({
        start(body) { body.enqueue(event); more(body); }, cancel() { left += 1; } })); };
      const follow = (onEvent) => api.stream('x', {}, { signal: new AbortController().signal, onEvent })
        .catch((error) => error.message);
      serve(() => 0);
      const defect = await follow(() => { throw new TypeError('mine'); });
      serve((body) => setTimeout(() => body.error(new TypeError('network'))));
      const cut = await follow(() => 0);
      serve((body) => body.close());
      const ended = await follow(() => 0);
      globalThis.fetch = async () => new Response(null, { status: 204 });
      return [defect, left, cut, ended, await follow(() => 0)];
    }""")
    assert found == ["mine", 1, True, True, False]


@pytest.mark.usefixtures("own_context")
def test_what_is_not_our_answer_is_a_refusal_and_no_defect(module_page: Page) -> None:
    """A proxy's login page, an empty error, an error that is no object."""
    found = module_page.evaluate("""async () => {
      const api = await import('/static/lib/api.js');
      const ask = (body, status) => {
        globalThis.fetch = async () => new Response(body, { status });
        return api.get('runs').catch((error) => [error instanceof api.Refused, error.words]);
      };
      return [await ask('<html>log in', 200), await ask('', 502), await ask('null', 500), await ask('[1]', 404),
        await ask('{"errors": 3, "message": "no"}', 422), await ask('', 200)];
    }""")
    said = ["<html>log in", "HTTP 502", "HTTP 500", "HTTP 404", "no"]
    assert found == [*([True, words] for words in said), None]


@pytest.mark.usefixtures("own_context")
def test_a_poll_never_overlaps_and_leaves_nothing_behind(module_page: Page) -> None:
    found = module_page.evaluate("""async () => {
      const { poll } = await import('/static/lib/poll.js');
      const { connection, lock, unlock } = await import('/static/lib/connection.js');
      const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
      let [calls, at_once, most, aborted] = [0, 0, 0, false];
      const polled = poll(0.001, async (signal) => {
        calls += 1; at_once += 1; most = Math.max(most, at_once);
        signal.onabort = () => { aborted = true; };
        await sleep(5);
        at_once -= 1;
        if (calls === 2) throw new DOMException('x', 'TimeoutError');
      });
      for (let n = 0; n < 20; n += 1) { polled.soon(); await sleep(2); }
      lock('missing');
      await sleep(20);
      const locked = calls;
      await sleep(40);
      const stood = calls === locked;
      unlock();
      await sleep(20);
      const went = calls > locked;
      polled.stop();
      const stopped = calls;
      unlock(); polled.soon(); document.dispatchEvent(new Event('visibilitychange'));
      await sleep(30);
      return { most, aborted, stood, went, ended: calls === stopped, followers: connection.followers.size };
    }""")
    assert found == {"most": 1, "aborted": True, "stood": True, "went": True, "ended": True, "followers": 0}
