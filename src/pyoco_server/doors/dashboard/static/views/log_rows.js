// A virtual list of lines with different heights: only those near the screen are in the DOM. DOM order is log order, and
// elements are never reused for another line, so a text selection survives scrolling.

import { plain } from "../lib/ansi.js";
import { h } from "../lib/dom.js";
import { makeRow } from "./log_row.js";

/** @typedef {import("../lib/wire.js").LogLine} LogLine */
/** @typedef {{ line: LogLine, away: number }} Anchor the topmost visible line and the pixels of it above the edge */

/** Overscan in pixels. */
const BEYOND = 400;
/** Measuring new rows may move others onto the screen, which are then drawn in another round. */
const ROUNDS_MAX = 5;
/** Within this many pixels of the end, new lines are followed. */
const NEAR = 6;
/** Assumed columns before the first measurement. */
const CHARACTERS = 160;

export class LogRows {
  /** @param {{ label: string, onMove: () => void }} how `onMove` is called after each draw */
  constructor(how) {
    this.onMove = how.onMove;
    /** @type {LogLine[]} */
    this.lines = [];
    this.search = "";
    this.marksAttempts = false;
    this.wraps = true;
    /** Scrolled to the end, and kept there as lines arrive. */
    this.isFollowing = true;
    /** Whether the last of these lines is the last line of the log. */
    this.hasEnd = true;
    this.lineHeight = 20;
    this.columns = CHARACTERS;
    /** @type {WeakMap<LogLine, number>} measured heights */
    this.heights = new WeakMap();
    /** The offset of each line, and the total height. */
    this.tops = new Float64Array(1);
    /** @type {Map<LogLine, { element: HTMLElement, top: number, beginsAttempt: boolean }>} */
    this.shown = new Map();
    /** @type {Set<LogLine>} lines that contain an end of the selection */
    this.held = new Set();
    this.frame_ = 0;
    this.sizer = h("div", { class: "log-sizer" });
    this.probe = h("div", { class: "log-probe log-line", "aria-hidden": "true" }, "0".repeat(20));
    this.element = h("div", {
      class: "log-frame", role: "log", tabindex: "0", "aria-label": how.label, "aria-live": "off",
    }, this.probe, this.sizer);
    this.stopping = new AbortController();
    const { signal } = this.stopping;
    this.element.addEventListener("scroll", () => this.onScroll(), { passive: true });
    this.element.addEventListener("copy", (event) => this.onCopy(event));
    document.addEventListener("selectionchange", () => this.hold(), { signal });
    this.width = 0;
    this.sizes = new ResizeObserver(() => this.measure());
    this.sizes.observe(this.element);
  }

  close() {
    this.stopping.abort();
    this.sizes.disconnect();
    cancelAnimationFrame(this.frame_);
  }

  /**
   * Show these lines without moving the visible ones. When following, scroll to the end.
   * @param {LogLine[]} lines
   */
  show(lines) {
    const anchor = this.anchor();
    this.lines = lines;
    this.lay();
    this.settle(anchor);
    this.draw();
  }

  /** Recreate all rows, after wrapping or the width changed. */
  remake() {
    const anchor = this.anchor();
    for (const row of this.shown.values()) row.element.remove();
    this.shown.clear();
    this.heights = new WeakMap();
    this.sizer.style.minWidth = "";
    this.element.classList.toggle("log-wraps", this.wraps);
    this.lay();
    this.settle(anchor);
    this.draw();
  }

  toStart() {
    this.isFollowing = false;
    this.element.scrollTop = 0;
    this.draw();
  }

  toEnd() {
    this.isFollowing = true;
    this.settle(null);
    this.draw();
  }

  /** The frame was resized. */
  measure() {
    const box = this.probe.getBoundingClientRect();
    const width = this.element.clientWidth;
    if (box.height === 0 || width === 0) return; // not shown
    this.lineHeight = box.height;
    this.columns = Math.max(8, Math.floor((width - 180) / (box.width / 20)));
    if (width === this.width) {
      this.settle(this.isFollowing ? null : this.anchor());
      return this.draw();
    }
    this.width = width;
    this.remake();
  }

  lay() {
    this.tops = new Float64Array(this.lines.length + 1);
    let top = 0;
    this.lines.forEach((line, at) => {
      this.tops[at] = top;
      top += this.heights.get(line) ?? this.guess(line);
    });
    this.tops[this.lines.length] = top;
    this.sizer.style.height = `${top}px`;
  }

  /** @param {LogLine} line */
  guess(line) {
    const texts = line.exc ? [line.text, ...line.exc.split("\n")] : [line.text];
    if (!this.wraps) return this.lineHeight * texts.length;
    return this.lineHeight * texts.reduce((sum, text) => sum + Math.max(1, Math.ceil(text.length / this.columns)), 0);
  }

  /** @returns {Anchor | null} */
  anchor() {
    const at = this.indexAt(this.element.scrollTop);
    const line = this.lines[at];
    return line === undefined ? null : { line, away: this.element.scrollTop - /** @type {number} */ (this.tops[at]) };
  }

  /** @param {Anchor | null} anchor */
  settle(anchor) {
    if (this.isFollowing) {
      this.scrollTo(/** @type {number} */ (this.tops[this.lines.length]));
      return;
    }
    const at = anchor === null ? -1 : this.lines.indexOf(anchor.line);
    if (anchor !== null && at >= 0) this.scrollTo(/** @type {number} */ (this.tops[at]) + anchor.away);
  }

  /** @param {number} top */
  scrollTo(top) {
    if (Math.abs(this.element.scrollTop - top) >= 1) this.element.scrollTop = top;
  }

  /**
   * The index of the line at this offset. O(log lines).
   * @param {number} top
   */
  indexAt(top) {
    let low = 0;
    let high = this.lines.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (/** @type {number} */ (this.tops[middle]) <= top) low = middle;
      else high = middle;
    }
    return low;
  }

  onScroll() {
    const { scrollTop, clientHeight, scrollHeight } = this.element;
    this.isFollowing = this.hasEnd && scrollTop + clientHeight >= scrollHeight - NEAR;
    this.later();
  }

  later() {
    if (this.frame_ !== 0) return;
    this.frame_ = requestAnimationFrame(() => {
      this.frame_ = 0;
      this.draw();
    });
  }

  /** O(lines on the screen); O(lines) when a row turns out to have another height than estimated. */
  draw() {
    for (let round = 0; round < ROUNDS_MAX; round += 1) {
      const { scrollTop, clientHeight } = this.element;
      const first = this.indexAt(scrollTop - BEYOND);
      const last = Math.min(this.lines.length, this.indexAt(scrollTop + clientHeight + BEYOND) + 1);
      this.place(first, last);
      if (this.isAsGuessed()) break;
      const anchor = this.anchor();
      this.lay();
      this.settle(anchor);
    }
    if (!this.wraps) this.widen();
    this.onMove();
  }

  /**
   * @param {number} first
   * @param {number} last
   */
  place(first, last) {
    const indexes = this.indexes(first, last);
    const wanted = new Set(indexes.map((at) => this.lines[at]));
    for (const [line, row] of this.shown) {
      if (wanted.has(line)) continue;
      row.element.remove();
      this.shown.delete(line);
    }
    let next = this.sizer.firstElementChild;
    for (const at of indexes) {
      const line = /** @type {LogLine} */ (this.lines[at]);
      const row = this.rowOf(line, at);
      if (row.element === next) next = next.nextElementSibling;
      else this.sizer.insertBefore(row.element, next);
      const top = /** @type {number} */ (this.tops[at]);
      if (row.top === top) continue;
      row.top = top;
      row.element.style.transform = `translateY(${top}px)`;
    }
  }

  /**
   * @param {number} first
   * @param {number} last
   */
  indexes(first, last) {
    const indexes = Array.from({ length: Math.max(0, last - first) }, (_, offset) => first + offset);
    const held = [...this.held].map((line) => this.lines.indexOf(line)).filter((at) => at >= 0 && (at < first || at >= last));
    return held.length === 0 ? indexes : [...indexes, ...held].sort((one, other) => one - other);
  }

  /**
   * The line's row. It is recreated when earlier lines of its attempt were loaded, to remove the attempt's heading.
   * @param {LogLine} line
   * @param {number} at
   */
  rowOf(line, at) {
    const beginsAttempt = this.marksAttempts && this.lines[at - 1]?.attempt !== line.attempt;
    const old = this.shown.get(line);
    if (old?.beginsAttempt === beginsAttempt) return old;
    const row = { element: makeRow(line, { beginsAttempt, search: this.search }), top: NaN, beginsAttempt };
    old?.element.replaceWith(row.element);
    this.shown.set(line, row);
    return row;
  }

  /** Measure the rows. Returns whether all estimated heights were right. Forces one layout. */
  isAsGuessed() {
    let isSame = true;
    for (const [line, row] of this.shown) {
      const height = row.element.offsetHeight;
      if (height === 0 || this.heights.get(line) === height) continue;
      const known = this.heights.get(line) ?? this.guess(line);
      this.heights.set(line, height);
      if (Math.abs(known - height) > 0.01) isSame = false;
    }
    return isSame;
  }

  /** Never shrink while scrolling, so that the horizontal scroll position is kept. */
  widen() {
    const width = this.element.scrollWidth;
    if (width > this.element.clientWidth && width > this.sizer.offsetWidth) this.sizer.style.minWidth = `${width}px`;
  }

  /** Keep the rows with the ends of the selection in the DOM. */
  hold() {
    const selection = getSelection();
    const ends = selection === null || selection.isCollapsed ? [] : [selection.anchorNode, selection.focusNode];
    this.held = new Set(ends.map((node) => this.lineOf(node)).filter((line) => line !== null));
  }

  /**
   * @param {Node | null} node
   * @returns {LogLine | null}
   */
  lineOf(node) {
    const element = (node instanceof Element ? node : node?.parentElement)?.closest(".log-row");
    if (!element || !this.sizer.contains(element)) return null;
    for (const [line, row] of this.shown) if (row.element === element) return line;
    return null;
  }

  /** Copy all selected lines, including those not in the DOM. @param {ClipboardEvent} event */
  onCopy(event) {
    const selection = getSelection();
    if (selection === null || selection.rangeCount === 0) return;
    const range = selection.getRangeAt(0);
    const [from, to] = [this.lineOf(range.startContainer), this.lineOf(range.endContainer)];
    if (from === null || to === null || from === to) return;
    const lines = this.lines.slice(this.lines.indexOf(from), this.lines.indexOf(to) + 1);
    const texts = lines.map((line) => (line.exc ? `${line.text}\n${line.exc}` : line.text).split("\n").map(plain).join("\n"));
    texts[0] = this.part(from, range, true);
    texts[texts.length - 1] = this.part(to, range, false);
    event.clipboardData?.setData("text/plain", texts.join("\n"));
    event.preventDefault();
  }

  /**
   * The selected part of the first or last line.
   * @param {LogLine} line
   * @param {Range} range
   * @param {boolean} isFirst
   */
  part(line, range, isFirst) {
    const text = this.shown.get(line)?.element.querySelector(".log-text");
    if (!text) return "";
    const part = document.createRange();
    part.selectNodeContents(text);
    if (isFirst && text.contains(range.startContainer)) part.setStart(range.startContainer, range.startOffset);
    if (!isFirst) {
      if (text.contains(range.endContainer)) part.setEnd(range.endContainer, range.endOffset);
      else part.collapse(true);
    }
    return part.toString();
  }
}
