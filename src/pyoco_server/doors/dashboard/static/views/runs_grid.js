// The rows of the list of runs: which of them are in the page, where they stand still, and how keys and pointer use them.

import { now, ticks } from "../lib/clock.js";
import { h, write } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { href } from "../lib/router.js";
import { scaleOf } from "../lib/run_bars.js";
import { VirtualRows, rowsOnScreen } from "../lib/virtual.js";
import { RunHead, RunRow } from "./runs_row.js";

/** @typedef {import("../lib/run_list.js").RunList} RunList */
/** @typedef {import("../lib/selection.js").Selection} Selection */

/** Rows beyond the screen that are loaded before somebody comes there. */
const AHEAD = 60;
const STILL_MS = 120;
/** While the pointer moves over the rows they do not move under it, for a moment. */
const HAND_MS = 600;
const HAND_MS_MAX = 3000;

export class RunGrid {
  /**
   * @param {{ list: RunList, selection: Selection, selectable: boolean, onSelect: () => void, onNearEnd: () => void }} with_
   */
  constructor(with_) {
    this.with = with_;
    this.list = with_.list;
    this.complete = false;
    this.scale = 1;
    /** @type {string | null} the row that keys act on */
    this.activeId = null;
    this.fresh = 0;
    this.pointerAt = -Infinity;
    this.heldSince = 0;
    this.frame = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} until the page has not been scrolled for a moment */
    this.still = undefined;
    this.topHeight = 0;
    this.headHeight = 0;
    this.stopping = new AbortController();
    this.all = h("input", { type: "checkbox", "aria-label": t("runs.select_all"), onchange: () => this.selectAll() });
    this.head = new RunHead(with_.selectable ? this.all : null);
    this.pillText = h("span");
    this.pill = h("button", { type: "button", class: "runs-pill", hidden: true, onclick: () => this.toTop() },
      icon("down"), this.pillText);
    this.body = h("div", { class: "runs-body", role: "rowgroup" });
    this.probe = h("div", { class: "runs-probe", "aria-hidden": "true" });
    this.element = h("div", { class: "runs-grid" + (with_.selectable ? "" : " runs-plain") },
      h("div", { class: "runs-sticky" }, this.pill), this.probe,
      h("div", { role: "grid", "aria-label": t("runs.title"), "aria-multiselectable": "true" },
        h("div", { role: "rowgroup", class: "runs-head-group" }, this.head.element), this.body));
    this.grid = /** @type {HTMLElement} */ (this.body.parentElement);
    /** @type {VirtualRows<import("../lib/run_list.js").Row, RunRow>} */
    this.virtual = new VirtualRows(this.body, () => new RunRow(with_.selectable), (row, run, index) => row.show(run, {
      index, selected: with_.selection.ids.has(run.run_id), active: run.run_id === this.tabStop, scale: this.scale,
    }));
    /** @type {string | null} */
    this.tabStop = null;
    this.listen();
  }

  listen() {
    const { signal } = this.stopping;
    addEventListener("scroll", () => this.onScroll(), { signal, passive: true });
    addEventListener("resize", () => this.later(), { signal, passive: true });
    this.body.addEventListener("click", (event) => this.onClick(event));
    this.body.addEventListener("mousedown", (event) => {
      if (event.shiftKey) event.preventDefault(); // a range of rows, not of text
    });
    this.body.addEventListener("pointermove", () => (this.pointerAt = performance.now()), { passive: true });
    this.body.addEventListener("focusin", (event) => this.onFocus(event));
    this.sizes = new ResizeObserver(() => this.measure());
    this.sizes.observe(this.probe);
    this.unfollow = ticks.follow(() => this.tick());
  }

  close() {
    this.stopping.abort();
    this.sizes?.disconnect();
    this.unfollow?.();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.still);
  }

  /** The height of a row is said by the style sheet, and differs with the width of the page. */
  measure() {
    const top = document.querySelector("header.top");
    if (top) this.sizes?.observe(top); // another one after a change of colours
    this.topHeight = top?.getBoundingClientRect().height ?? 0;
    this.headHeight = this.head.element.offsetHeight;
    this.element.style.setProperty("--runs-top", `${this.topHeight}px`);
    const height = this.probe.getBoundingClientRect().height;
    if (height === this.virtual.rowHeight) return this.later();
    const first = this.onScreen().first;
    const scrolled = this.virtual.rowHeight > 0 && !this.atTop();
    this.virtual.rowHeight = height;
    this.draw();
    if (scrolled) this.reveal(first);
  }

  later() {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  /** While rows fly by, all that matters is that they are there. Their order in the page can wait. */
  onScroll() {
    clearTimeout(this.still);
    this.still = setTimeout(() => {
      this.still = undefined;
      this.later();
    }, STILL_MS);
    this.later();
  }

  /** O(rows on the screen) */
  draw() {
    if (!this.element.isConnected) return;
    const { rows } = this.list;
    const top = this.body.getBoundingClientRect().top; // once, and before anything is written
    const onScreen = this.onScreen(top);
    this.tabStop = this.list.byId.has(this.activeId ?? "") ? this.activeId : rows[onScreen.first]?.run_id ?? null;
    const pinned = this.body.contains(document.activeElement) ? this.list.indexOf(this.activeId) : -1;
    this.virtual.draw(rows, onScreen, pinned);
    if (this.still === undefined) this.virtual.order();
    this.head.show(this.scale);
    const total = String(this.complete ? rows.length + 1 : -1);
    if (this.grid.getAttribute("aria-rowcount") !== total) this.grid.setAttribute("aria-rowcount", total);
    if (this.atTop(top)) this.fresh = 0;
    this.pill.hidden = this.fresh === 0;
    if (this.fresh > 0) write(this.pillText, t("runs.new", { n: count(this.fresh) }));
    const selected = this.with.selection.ids.size;
    this.all.checked = selected > 0 && selected === rows.length;
    this.all.indeterminate = selected > 0 && selected < rows.length;
    if (onScreen.last + AHEAD >= rows.length) this.with.onNearEnd();
  }

  onScreen(top = this.body.getBoundingClientRect().top) {
    const { rowHeight } = this.virtual;
    const screen = innerHeight - this.covered;
    return rowsOnScreen({ top: this.covered - top, screen, rowHeight, count: this.list.rows.length });
  }

  /** What sticks to the top of the screen hides this much of it. */
  get covered() {
    return this.topHeight + this.headHeight;
  }

  atTop(top = this.body.getBoundingClientRect().top) {
    return top >= this.covered - 2;
  }

  /** How many rows from the top on must be true. */
  needs() {
    return { rows: this.onScreen().last + AHEAD, ids: [...this.with.selection.ids, ...(this.activeId ? [this.activeId] : [])] };
  }

  /**
   * Change the list, and keep what is looked at where it is: the row with the focus, else the first on the screen. At
   * the top there is nothing to keep, new runs come in for all to see.
   * @param {() => { newer: number }} change
   */
  apply(change) {
    const kept = this.atTop() ? [] : this.anchors();
    const focused = this.body.contains(document.activeElement);
    const activeIndex = this.list.indexOf(this.activeId);
    const before = kept.map((id) => this.list.indexOf(id));
    const { newer } = change();
    this.with.selection.retain(this.list.byId);
    this.scale = scaleOf(this.list.rows, now(), this.scale);
    const anchor = kept.findIndex((id) => this.list.byId.has(id));
    if (anchor >= 0) {
      this.fresh += newer;
      const moved = this.list.indexOf(/** @type {string} */ (kept[anchor])) - /** @type {number} */ (before[anchor]);
      this.virtual.stretch(this.list.rows.length * this.virtual.rowHeight);
      if (moved !== 0) scrollBy({ top: moved * this.virtual.rowHeight, behavior: "instant" });
      this.draw();
    } else if (!this.held()) this.draw();
    if (focused && activeIndex >= 0 && this.list.indexOf(this.activeId) < 0) {
      this.focusRow(Math.min(activeIndex, this.list.rows.length - 1), false);
    }
  }

  anchors() {
    const { first, last } = this.onScreen();
    const ids = this.list.rows.slice(first, last).map((row) => row.run_id);
    const focused = this.body.contains(document.activeElement) && ids.includes(this.activeId ?? "");
    return focused ? [/** @type {string} */ (this.activeId), ...ids] : ids;
  }

  /** Whether to wait with drawing, for the pointer is about to press something. What it presses is what it sees. */
  held() {
    const at = performance.now();
    if (at - this.pointerAt > HAND_MS || (this.heldSince !== 0 && at - this.heldSince > HAND_MS_MAX)) {
      this.heldSince = 0;
      return false;
    }
    if (this.heldSince === 0) this.heldSince = at;
    setTimeout(() => {
      if (!this.stopping.signal.aborted && !this.held()) this.draw();
    }, HAND_MS / 2);
    return true;
  }

  tick() {
    for (const row of this.virtual.shown.values()) if (row.live) row.tick();
  }

  toTop() {
    this.fresh = 0;
    this.activeId = null;
    scrollTo({ top: 0, behavior: "instant" });
    this.draw();
  }

  /**
   * Scroll just as far as needed.
   * @param {number} index
   */
  reveal(index) {
    const top = this.body.getBoundingClientRect().top + index * this.virtual.rowHeight;
    const above = top - this.covered;
    const below = top + this.virtual.rowHeight - (innerHeight - this.hiddenBelow());
    if (above < 0) scrollBy({ top: above, behavior: "instant" });
    else if (below > 0) scrollBy({ top: below, behavior: "instant" });
  }

  hiddenBelow() {
    return document.querySelector(".runs-bulk:not([hidden])")?.getBoundingClientRect().height ?? 0;
  }

  /**
   * @param {number} index
   * @param {boolean} [reveal]
   */
  focusRow(index, reveal = true) {
    const row = this.list.rows[index];
    if (row === undefined) return;
    this.activeId = row.run_id;
    if (reveal) this.reveal(index);
    this.draw();
    this.virtual.shown.get(row.run_id)?.element.focus({ preventScroll: true });
    this.draw();
  }

  /** @param {FocusEvent} event */
  onFocus(event) {
    const id = rowIdOf(event.target);
    if (id === null || id === this.activeId) return;
    this.activeId = id;
    this.later();
  }

  /** @param {MouseEvent} event */
  onClick(event) {
    const id = rowIdOf(event.target);
    if (id === null || !(event.target instanceof Element)) return;
    const control = event.target.closest("a, button, input");
    const box = event.target.closest(".runs-check") !== null; // all of the cell: a finger is wide
    const picks = box || (control === null && (event.shiftKey || event.ctrlKey || event.metaKey));
    if (picks && this.with.selectable) this.select(id, event.shiftKey);
    else if (control === null && getSelection()?.isCollapsed !== false) this.open(id);
  }

  /** @param {string} id */
  open(id) {
    this.activeId = id;
    location.hash = href("runs", [id]);
  }

  /**
   * @param {string} id
   * @param {boolean} range
   */
  select(id, range) {
    const { selection } = this.with;
    if (range) selection.range(this.list.rows, this.list.indexOf(selection.pivot), this.list.indexOf(id));
    else selection.toggle(id);
    this.selected();
  }

  selectAll() {
    const { selection } = this.with;
    if (selection.ids.size > 0) selection.clear();
    else selection.range(this.list.rows, 0, this.list.rows.length - 1);
    this.selected();
  }

  selected() {
    this.draw();
    this.with.onSelect();
  }
}

/**
 * @param {EventTarget | null} target
 * @returns {string | null}
 */
function rowIdOf(target) {
  const row = target instanceof Element ? target.closest(".runs-row") : null;
  return row instanceof HTMLElement ? row.dataset.id ?? null : null;
}
