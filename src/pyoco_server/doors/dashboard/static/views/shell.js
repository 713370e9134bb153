// The frame around every view: menu, attention, state of the connection, and which view is open.

import { connection, lastAnswerAt, lock, reach, trouble } from "../lib/connection.js";
import { now } from "../lib/clock.js";
import { h, put } from "../lib/dom.js";
import { dateTime, timeOfDay } from "../lib/format.js";
import { language, speak, t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { button, iconButton, isTyping, nothing } from "../lib/parts.js";
import { href, readPlace } from "../lib/router.js";
import { scrolls } from "../lib/scrolls.js";
import { currentKey, forgetKey } from "../lib/session.js";
import { applyTheme, chosenTheme, remember, settings } from "../lib/settings.js";
import { forgetToasts, toast, toastRegion } from "../lib/toast.js";
import { home, panels } from "../panels.js";
import { AttentionStrip } from "./attention.js";
import { showHelp } from "./help.js";
import { KeyPrompt } from "./key_prompt.js";
import { Menu } from "./menu.js";
import { SearchBox } from "./search.js";

/** @typedef {import("../panels.js").View} View */
/** @typedef {import("../lib/settings.js").Theme} Theme */

/** @type {Theme[]} */
const THEMES = ["auto", "light", "dark"];
const CHORD_MS = 1500;
const HALF_A_DAY_SECONDS = 43_200;

export class Shell {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.outlet = h("main", { id: "content", tabindex: "-1" });
    this.banner = h("div", { class: "connection", role: "alert", hidden: true });
    this.menu = new Menu();
    this.search = new SearchBox(() => readPlace(location.hash, home), (address) => this.replace(address));
    this.attention = new AttentionStrip();
    this.prompt = new KeyPrompt();
    /** @type {View | null} */
    this.view = null;
    this.chordAt = 0;
    /** @type {HTMLElement | null} */
    this.keyButton = null;
  }

  begin() {
    addEventListener("hashchange", () => this.goTo("user"));
    document.addEventListener("keydown", (event) => this.onKey(event));
    if (settings.asksForKey && currentKey() === null) lock("missing");
    this.draw();
    this.attention.letters.follow((count) => this.menu.mark("letters", count));
    for (const signal of [reach, trouble]) signal.follow(() => this.tellReach());
    let before = reach.value;
    reach.follow((state) => {
      if (before !== state && state === "ok" && connection.value !== "locked") toast(t("connection.back"));
      before = state;
    });
    connection.follow((state) => this.onConnection(state));
  }

  /** @param {import("../lib/connection.js").Connection} state */
  onConnection(state) {
    document.documentElement.dataset.connection = state;
    if (state === "locked") this.clear();
    this.prompt.show(state === "locked");
    this.offerKey();
    if (state !== "locked" && this.view === null) this.goTo("again");
  }

  /** The next key may belong to somebody else, who sees nothing of what was on the page before. */
  clear() {
    this.close();
    put(this.outlet);
    this.outlet.removeAttribute("aria-label");
    closeDialogs();
    document.title = "pyoco";
    this.attention.forget();
    this.search.forget();
    scrolls.forget();
    forgetToasts(); // in the end: what was closed may have said something
  }

  /** Everything anew: at the beginning, and in another language. */
  draw() {
    put(this.root,
      h("a", { class: "skip", href: "#content", onclick: (/** @type {Event} */ event) => this.skip(event) }, t("skip")),
      this.header(), this.banner, this.attention.element, this.outlet, toastRegion());
    this.menu.draw();
    this.search.draw();
    this.attention.draw();
    this.tellReach();
    this.goTo("again");
  }

  header() {
    this.keyButton = iconButton("key", t("key.forget"), () => this.forget());
    this.offerKey();
    const theme = iconButton("theme", t("theme", { theme: t(`theme.${chosenTheme()}`) }), () => this.nextTheme(theme));
    return h("header", { class: "top" },
      h("a", { class: "brand", href: href(home) }, logo(), h("span", null, "pyoco"),
        h("small", null, settings.version)),
      this.menu.element, this.search.element,
      h("div", { class: "top-tools" },
        settings.readOnly ? h("span", { class: "tag-note", title: t("read_only.title") }, t("read_only")) : null,
        this.keyButton,
        iconButton("help", t("help"), () => showHelp()),
        theme,
        h("button", {
          type: "button", class: "button quiet language", title: t("language.title"),
          lang: language() === "en" ? "ja" : "en", onclick: () => this.otherLanguage(),
        }, t("language"))));
  }

  /** What was entered can be forgotten, also where no key is needed. */
  offerKey() {
    if (this.keyButton) this.keyButton.hidden = !settings.asksForKey && currentKey() === null;
  }

  /** @param {Event} event */
  skip(event) {
    event.preventDefault();
    this.outlet.focus();
  }

  forget() {
    forgetKey();
    history.replaceState(null, "", href(readPlace(location.hash, home).panel)); // names and ids are in the address, too
    lock("missing");
  }

  /** @param {HTMLElement} pressed */
  nextTheme(pressed) {
    const next = /** @type {Theme} */ (THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]);
    remember("theme", next === "auto" ? null : next);
    applyTheme(next);
    const words = t("theme", { theme: t(`theme.${next}`) });
    pressed.setAttribute("aria-label", words);
    pressed.title = words;
    toast(words, "plain", undefined, "theme");
  }

  otherLanguage() {
    const other = language() === "en" ? "ja" : "en";
    const top = scrollY;
    remember("language", other === settings.language ? null : other);
    speak(other);
    this.draw();
    scrolls.settleAt(top);
    /** @type {HTMLElement | null} */ (this.root.querySelector(".language"))?.focus();
  }

  /**
   * Show what the address says.
   * @param {"user" | "again"} why user: somebody went there. again: the same place has to be made anew.
   */
  goTo(why) {
    const place = readPlace(location.hash, home);
    if (why === "user" && this.followed(place)) {
      this.tellPlace(place);
      return;
    }
    this.close();
    if (connection.value === "locked") return; // nothing may be asked yet; it is opened once there is a key
    const panel = panels.find((each) => each.id === place.panel);
    this.view = panel ? this.opened(() => panel.open(place)) : { element: missing() };
    put(this.outlet, this.view.element);
    this.tellPlace(place);
    if (why === "user") this.arrive();
  }

  /** @param {import("../lib/router.js").Place} place */
  followed(place) {
    try {
      return this.view?.moved?.(place) === true;
    } catch (error) {
      reportError(error);
      return false;
    }
  }

  /** Somebody went to another view: read its heading aloud, and let Tab begin there. */
  arrive() {
    closeDialogs();
    const heading = this.outlet.querySelector("h1");
    heading?.setAttribute("tabindex", "-1");
    (heading ?? this.outlet).focus({ preventScroll: true });
    scrolls.arrive();
  }

  /** @param {import("../lib/router.js").Place} place */
  tellPlace(place) {
    const panel = panels.find((each) => each.id === place.panel);
    const words = this.view?.title ?? t(panel ? panel.title : "view.unknown");
    document.title = `${words} · pyoco`;
    this.outlet.setAttribute("aria-label", words);
    this.menu.show(place.panel);
    this.search.show();
  }

  /**
   * Another list in the place of this one: what is typed is one step back, not one for each letter.
   * @param {string} address
   */
  replace(address) {
    history.replaceState(null, "", address);
    this.goTo("user");
  }

  /**
   * A defect of one view leaves the others usable.
   * @param {() => View} open
   * @returns {View}
   */
  opened(open) {
    try {
      return open();
    } catch (error) {
      reportError(error);
      return { element: nothing(t("view.failed"), button(t("load_again"), () => location.reload())) };
    }
  }

  close() {
    const view = this.view;
    this.view = null;
    try {
      view?.close?.();
    } catch (error) {
      reportError(error); // and go on: the next view is what was asked for
    }
  }

  tellReach() {
    const state = reach.value;
    this.banner.hidden = state === "ok";
    if (state === "ok") return;
    const at = now() - lastAnswerAt > HALF_A_DAY_SECONDS ? dateTime(lastAnswerAt) : timeOfDay(lastAnswerAt);
    const words = t(`connection.${state === "nats" ? trouble.value : state}`, { at });
    put(this.banner, icon("danger"), h("span", null, words));
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector("dialog[open]")) return;
    if (this.view?.onKey?.(event)) {
      event.preventDefault();
      return;
    }
    if (isTyping(event.target)) return;
    if (event.key === "/") {
      event.preventDefault();
      this.search.focus();
    } else if (event.key === "?") showHelp();
    else if (Date.now() - this.chordAt < CHORD_MS) this.chord(event);
    else if (event.key === "g") this.chordAt = Date.now();
  }

  /** @param {KeyboardEvent} event */
  chord(event) {
    this.chordAt = 0;
    const panel = panels.find((each) => each.key === event.key);
    if (panel) location.hash = href(panel.id);
  }
}

/** All but the question for the key. */
function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog[open]:not(.key-prompt)")) {
    /** @type {HTMLDialogElement} */ (dialog).close();
  }
}

function missing() {
  return h("div", { class: "view" }, h("h1", null, t("view.unknown")),
    h("p", null, h("a", { href: href(home) }, t("view.home"))));
}

function logo() {
  return h("img", { src: new URL("../icon.svg", import.meta.url).href, alt: "", width: "24", height: "24" });
}
