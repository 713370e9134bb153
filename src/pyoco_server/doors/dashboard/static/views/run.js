// One run: everything the server knows of it, live.

import { now } from "../lib/clock.js";
import { lock } from "../lib/connection.js";
import { h, put } from "../lib/dom.js";
import { Signal } from "../lib/events.js";
import { t, wordFor } from "../lib/i18n.js";
import { isEverything, placeOf, readPlaceOf } from "../lib/log_filter.js";
import { button, commandBox, nothing, skeleton } from "../lib/parts.js";
import { href, readPlace } from "../lib/router.js";
import { textOf } from "../lib/run_facts.js";
import { currentKey } from "../lib/session.js";
import { settings } from "../lib/settings.js";
import { RunFeed } from "./run_feed.js";
import { Guarded } from "./run_guard.js";
import { RunHead } from "./run_head.js";
import { sectionsOf } from "./run_kinds.js";

/** @typedef {import("../lib/router.js").Place} Place */
/** @typedef {import("../lib/wire.js").Run} Run */

/** An id has no other characters; an address with `..` would be another one. */
const ID = /^[\w-]{1,100}$/;

/** The list as it was left, with its filters. */
let list = href("runs");
addEventListener("hashchange", (event) => {
  const place = readPlace(new URL(event.oldURL).hash, "runs");
  if (place.panel === "runs" && place.rest.length === 0) list = href("runs", [], place.query);
});

/**
 * @param {Place} place
 * @returns {import("../panels.js").View}
 */
export function openRun(place) {
  const page = new RunView(String(place.rest[0]), place.query);
  return {
    element: page.element,
    get title() {
      return page.title;
    },
    close: () => page.close(), moved: (next) => page.moved(next),
    onKey: (event) => page.onKey(event),
  };
}

class RunView {
  /**
   * @param {string} id
   * @param {URLSearchParams} query
   */
  constructor(id, query) {
    this.id = id;
    /** For the window, at all times. */
    this.title = t("run.title");
    /** @type {Signal<string | null>} */
    this.selected = new Signal(query.get("task"));
    this.logFilter = new Signal(readPlaceOf(query));
    this.logJump = new Signal(isEverything(this.logFilter.value) ? 0 : 1);
    this.head = new Guarded(new RunHead(id, list));
    this.notice = h("div", { role: "status" });
    this.body = h("div", { class: "run-body" }, h("p", { class: "unseen" }, t("run.loading")), skeleton(6));
    this.element = h("div", { class: "view run-view" }, this.head.element, this.notice, this.body);
    /** @type {Guarded[]} */
    this.sections = [];
    this.refusal = "";
    /** @type {string | null} */
    this.kind = null;
    this.feed = new RunFeed(id, {
      onRun: (run) => this.show(run),
      onMissing: (run) => this.tellMissing(run),
      onRefused: (words) => this.tellRefused(words),
    });
    this.unfollows = [this.selected.follow(() => this.keepPlace()), this.logFilter.follow(() => this.keepPlace())];
    if (ID.test(id)) this.feed.start();
    else this.tellMissing(null);
  }

  close() {
    this.feed.stop();
    for (const unfollow of this.unfollows) unfollow();
    this.head.close();
    this.closeSections();
  }

  closeSections() {
    for (const section of this.sections) section.close();
    this.sections = [];
  }

  /** @param {Place} place */
  moved(place) {
    if (place.panel !== "runs" || place.rest[0] !== this.id) return false;
    const wanted = readPlaceOf(place.query);
    this.selected.set(place.query.get("task"));
    if (JSON.stringify(wanted) !== JSON.stringify(this.logFilter.value)) this.logFilter.set(wanted);
    return true;
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key !== "Escape") return false;
    const target = event.target;
    if (target instanceof HTMLInputElement) {
      if (target.value === "") target.blur();
      return false; // the browser clears it
    }
    if (this.selected.value !== null) this.selected.set(null);
    else location.hash = list;
    return true;
  }

  /** Keep the selected task and the log filter in the address, without adding history entries. */
  keepPlace() {
    const here = href("runs", [this.id], { task: this.selected.value, ...placeOf(this.logFilter.value) });
    if (location.hash === here || readPlace(location.hash, "").rest[0] !== this.id) return;
    history.replaceState(history.state, "", here);
  }

  /** @param {Run} run */
  show(run) {
    put(this.notice);
    this.head.show(run);
    const kind = typeof run.kind === "string" ? run.kind : "flow";
    if (kind !== this.kind) this.open(kind);
    for (const section of this.sections) section.show(run);
    const state = run.gone_at === undefined ? wordFor("status", String(run.status)) : t("run.removed.badge");
    this.title = `${textOf(run.flow_name) || t("run.title")} · ${state}`;
    document.title = `${this.title} · pyoco`;
  }

  /** @param {string} kind */
  open(kind) {
    this.kind = kind;
    this.refusal = "";
    this.closeSections();
    const { main, aside } = sectionsOf(kind);
    const page = { id: this.id, selected: this.selected, logFilter: this.logFilter, logJump: this.logJump };
    const left = main.map((Class) => new Guarded(new Class(page)));
    const right = aside.map((Class) => new Guarded(new Class(page)));
    this.sections = [...left, ...right];
    put(this.body,
      h("div", { class: "run-main" }, left.map((section) => section.element)),
      h("aside", { class: "run-aside" }, right.map((section) => section.element)));
  }

  /** @param {Run | null} run as it was last seen, if ever */
  tellMissing(run) {
    if (run !== null) {
      this.show({ ...run, gone_at: now() });
      put(this.notice, h("div", { class: "run-notice" },
        h("strong", null, t("run.removed")), h("p", null, t("run.removed.why"))));
      return;
    }
    put(this.body, nothing(t("run.missing"), h("p", null, t("run.missing.why")),
      settings.asksForKey || currentKey() !== null ? null : button(t("key.enter"), () => lock("missing")),
      h("a", { class: "button", href: href("runs") }, t("run.missing.list")), commandBox("pyoco-client list")));
  }

  /** @param {string} words */
  tellRefused(words) {
    if (words === this.refusal) return; // at the next try, the same
    this.refusal = words;
    put(this.body, nothing(t("run.refused"), h("p", { role: "status" }, words),
      h("a", { class: "button", href: list }, t("run.missing.list"))));
  }
}
