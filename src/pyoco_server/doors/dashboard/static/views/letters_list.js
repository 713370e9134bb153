// Dead letters one by one: the newest first, more on demand, and all about the one that is open.

import { get, Refused } from "../lib/api.js";
import { act } from "../lib/act.js";
import { h, put, write } from "../lib/dom.js";
import { list } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { KeyedList } from "../lib/keyed.js";
import { addPage, isSame, letterPath, LETTERS_MAX, mergePage } from "../lib/letters.js";
import { actButton, nothing, refill, skeleton } from "../lib/parts.js";
import { isTrouble } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { cell, opener, showSince } from "./fleet_parts.js";
import { whyWords } from "./letters_bulk.js";
import { actionsOf, detailParts } from "./letter_detail.js";

/** @typedef {import("../lib/wire.js").Letter} Letter */
/** @typedef {import("../lib/wire.js").LetterDetail} LetterDetail */
/** @typedef {import("../lib/letters.js").LetterFilter} LetterFilter */

const PAGE = 50;

export class LettersList {
  /**
   * @param {string | null} open
   * @param {{ opened: (id: string | null) => void, changed: () => void }} tell
   */
  constructor(open, tell) {
    this.tell = tell;
    /** @type {Letter[]} */
    this.letters = [];
    /** @type {string | null} */
    this.cursor = null;
    /** Whether more than the first page was asked for: then the cursor is that of the last one. */
    this.isDeep = false;
    this.isCut = false;
    this.open = open;
    /** @type {Letter | null} the open one, when the list does not show it */
    this.extra = null;
    /** @type {LetterFilter | null} whose letters these are */
    this.filter = null;
    this.forgotten = 0;
    this.stopping = new AbortController();
    /** @type {KeyedList<Letter>} */
    this.rows = new KeyedList(h("div", { class: "row-list", role: "list" }), (letter) => String(letter.id),
      (letter) => new LetterRow(letter, {
        toggle: () => this.toggle(String(letter.id)), gone: () => this.drop(String(letter.id)), signal: this.stopping.signal,
      }));
    this.box = h("div", { class: "rows letter-rows" }, this.rows.element);
    this.foot = h("div", { class: "stack" }, skeleton(4));
    this.elsewhere = h("p", { class: "small dim" });
    this.element = h("div", { class: "stack" }, this.elsewhere, this.box, this.foot);
    this.box.hidden = true;
  }

  close() {
    this.stopping.abort();
  }

  /** Another filter: what is shown is of no use any more. */
  forget() {
    this.forgotten += 1;
    this.letters = [];
    this.cursor = null;
    this.isDeep = this.isCut = false;
    this.filter = null;
    this.extra = null;
    this.rows.show([]);
    this.box.hidden = true;
    /** @type {any} */ (this.foot).pyocoMade = null;
    put(this.foot, skeleton(4));
  }

  /**
   * The newest letter of a filter that was shown; null: none was, or not yet.
   * @param {LetterFilter} filter
   */
  newest(filter) {
    const [first] = this.letters;
    return first !== undefined && isSame(this.filter, filter) ? String(first.id) : null;
  }

  /**
   * How many letters fit a filter, as far as all of them were loaded; null: not known.
   * @param {LetterFilter} filter
   */
  total(filter) {
    return isSame(this.filter, filter) && this.cursor === null && !this.isCut ? this.letters.length : null;
  }

  /**
   * The first page again; what was loaded below it stays as long as it joins that.
   * @param {LetterFilter} filter
   * @param {AbortSignal} signal
   */
  async refresh(filter, signal) {
    const { forgotten } = this;
    const page = await get(letterPath(filter, { limit: PAGE }), {}, signal);
    if (forgotten !== this.forgotten) return; // another filter is asked for by now
    const next = page?.next_cursor ?? null;
    const wasDeep = this.isDeep;
    const { isCut } = this;
    this.filter = filter;
    Object.assign(this, mergePage(wasDeep ? this.letters : [], list(page?.items), next === null));
    if (!this.isDeep) this.cursor = next;
    else if (this.isCut || isCut) this.cut();
    await this.lookForOpen(signal);
    if (forgotten !== this.forgotten) return;
    if (wasDeep && !this.isDeep) this.drawFromTop();
    else this.draw();
  }

  /** What was left off has no cursor: it cannot be loaded again, even when others make room. */
  cut() {
    this.isCut = true;
    this.cursor = null;
  }

  /** What one was reading may be gone from the list: one is at its top then, and not at some end of it. */
  drawFromTop() {
    const focused = document.activeElement;
    const hadFocus = focused !== null && this.element.contains(focused);
    this.draw();
    if (hadFocus && !focused.isConnected) this.focusRow(0);
    if (this.box.getBoundingClientRect().top < 0) this.rows.element.firstElementChild?.firstElementChild?.scrollIntoView();
  }

  /** @param {number} at */
  focusRow(at) {
    const opens = this.rows.element.children[at]?.querySelector("button");
    opens?.focus({ preventScroll: true });
  }

  /**
   * The one in the address may be on a page that was not loaded, or not fit the filter.
   * @param {AbortSignal} signal
   */
  async lookForOpen(signal) {
    const { open } = this;
    if (open === null || this.letters.some((letter) => String(letter.id) === open)) this.extra = null;
    else if (this.extra === null || String(this.extra.id) !== open) {
      this.extra = await get(`dlq/${encodeURIComponent(open)}`, {}, signal).catch((error) => {
        if (error instanceof Refused && error.status < 500) return null;
        throw error;
      });
    }
  }

  async loadMore() {
    const { filter, cursor, isDeep, forgotten } = this;
    if (filter === null || cursor === null) return;
    this.isDeep = true; // from here on a refresh keeps what the cursor follows
    const page = await act(() => get(letterPath(filter, { limit: PAGE, cursor }), {}, this.stopping.signal));
    // Another filter, or so many new letters that what was loaded is dropped: this follows nothing that is shown.
    if (forgotten !== this.forgotten || this.cursor !== cursor) return;
    if (page === undefined) {
      this.isDeep = isDeep;
      return;
    }
    const shown = this.letters.length;
    Object.assign(this, addPage(this.letters, list(page.items)));
    this.cursor = page.next_cursor ?? null;
    if (this.isCut || this.cursor !== null && this.letters.length >= LETTERS_MAX) this.cut();
    const hadFocus = this.foot.contains(document.activeElement);
    this.draw();
    if (hadFocus && !this.foot.contains(document.activeElement)) this.focusRow(shown);
  }

  draw() {
    const extra = this.extra !== null && String(this.extra.id) === this.open && !this.letters.some((each) => each.id === this.extra?.id)
      ? [this.extra] : [];
    this.box.hidden = this.letters.length + extra.length === 0;
    this.rows.show([...extra, ...this.letters]);
    write(this.elsewhere, extra.length === 0 ? "" : t("letters.elsewhere"));
    for (const [id, row] of this.rows.rows) /** @type {LetterRow} */ (row).expand(id === this.open);
    refill(this.foot, [this.letters.length === 0, this.cursor !== null, this.isCut ? this.letters.length : 0], () => {
      if (this.letters.length === 0) return [nothing(t("letters.none_here"), h("a", { href: href("letters") }, t("letters.all_groups")))];
      if (this.isCut) return [h("p", { class: "mark" }, t("letters.too_many", { n: count(this.letters.length) }))];
      return this.cursor === null ? [] : [actButton(t("letters.load_more"), () => this.loadMore())];
    });
  }

  /** @param {string} id */
  toggle(id) {
    this.open = this.open === id ? null : id;
    this.tell.opened(this.open);
    this.draw();
  }

  /** @param {string} id */
  drop(id) {
    if (this.stopping.signal.aborted) return; // the address is another view's by now
    this.letters = this.letters.filter((letter) => letter.id !== id);
    this.extra = null;
    if (this.open === id) {
      this.open = null;
      this.tell.opened(null);
    }
    this.draw();
    this.tell.changed();
  }
}

/** One letter: a line, and all about it once it is opened. */
class LetterRow {
  /**
   * @param {Letter} letter
   * @param {{ toggle: () => void, gone: () => void, signal: AbortSignal }} tell
   */
  constructor(letter, tell) {
    this.letter = letter;
    this.tell = tell;
    this.isOpen = false;
    this.title = h("span", { class: "clip" });
    const opens = opener(tell.toggle, this.title);
    this.opener = opens.button;
    this.detail = opens.detail;
    this.error = h("p", { class: "letter-error clip small" });
    this.at = h("span", { class: "small dim" });
    this.reason = cell(t("letters.reason"), "reason");
    this.element = h("div", { class: "row", role: "listitem" },
      h("div", { class: "letter-line" }, h("div", { class: "name-line" }, this.opener, this.reason.value, this.at), this.error),
      this.detail);
  }

  /** @param {Letter} letter */
  update(letter) {
    this.letter = letter;
    write(this.title, letter.flow_name ?? t("letters.no_flow"));
    write(this.error, String(letter.error ?? "").slice(0, 400) || t("letters.no_error"));
    refill(this.reason.value, letter.reason, () => [h("span", { class: "tag-note", title: whyWords(String(letter.reason), letter.flow_name) },
      wordFor("letters.reason", String(letter.reason)))]);
    showSince(this.at, letter.timestamp);
  }

  /** @param {boolean} open */
  expand(open) {
    if (open === this.isOpen) return;
    this.isOpen = open;
    this.opener.setAttribute("aria-expanded", String(open));
    this.element.classList.toggle("open", open);
    this.detail.hidden = !open;
    if (!open) return;
    put(this.detail, skeleton(3));
    void this.look();
  }

  async look() {
    const { signal } = this.tell;
    try {
      /** @type {LetterDetail} */
      const detail = await get(`dlq/${encodeURIComponent(this.letter.id)}`, {}, signal);
      const run = detail.run_id === undefined ? null : await this.runOf(detail.run_id);
      put(this.detail, ...detailParts(detail, run), actionsOf(detail, this.tell));
    } catch (error) {
      if (!isTrouble(error)) throw error;
      if (signal.aborted) return;
      if (error instanceof Refused && error.status === 404) put(this.detail, h("p", { class: "mark" }, t("letters.gone")));
      else {
        put(this.detail, h("p", { class: "mark" }, error instanceof Refused ? error.words : t("act.unreachable")),
          actButton(t("letters.again"), () => this.look()));
      }
    }
  }

  /**
   * What it was submitted with is told by its run, for as long as that is kept.
   * @param {string} id
   */
  async runOf(id) {
    try {
      return await get(`runs/${encodeURIComponent(id)}`, {}, this.tell.signal);
    } catch (error) {
      if (error instanceof Refused && error.status < 500) return null;
      throw error;
    }
  }
}
