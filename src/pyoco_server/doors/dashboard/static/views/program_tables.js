// Tables of the panel of programs: what waits, what runs, who may how much, and who serves it. A table is a list of
// columns; rows stay in place while their values change.

import { h, write } from "../lib/dom.js";
import { whole } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { KeyedList } from "../lib/keyed.js";
import { refill } from "../lib/parts.js";
import { cell, Meter, rowsHead } from "./fleet_parts.js";

/** @typedef {import("../lib/dom.js").Child} Child */
/**
 * @template T
 * @typedef {{ label: string, make: () => { element: HTMLElement, show: (item: T) => void } }} Column
 */

/** Nobody reads more; the rest is counted. */
const ROWS_MAX = 50;

/**
 * A value that is one text.
 * @template T
 * @param {string} label
 * @param {(item: T) => string} words
 * @returns {Column<T>}
 */
export function text(label, words) {
  return { label, make: () => {
    const element = h("span", { class: "number" });
    return { element, show: (item) => write(element, words(item) || "–") };
  } };
}

/**
 * A value that is made of elements; made anew only when `made` differs.
 * @template T
 * @param {string} label
 * @param {(item: T) => unknown} made
 * @param {(item: T) => Child[]} make
 * @returns {Column<T>}
 */
export function parts(label, made, make) {
  return { label, make: () => {
    const element = h("div", { class: "name-line" });
    return { element, show: (item) => refill(element, made(item), () => make(item)) };
  } };
}

/**
 * A part of a whole.
 * @template T
 * @param {string} label
 * @param {string} kind
 * @param {(item: T) => [value: number, most: number, words: string]} measure
 * @returns {Column<T>}
 */
export function meter(label, kind, measure) {
  return { label, make: () => {
    const made = new Meter(kind);
    return { element: made.element, show: (item) => made.show(...measure(item)) };
  } };
}

/** @template T */
export class Table {
  /**
   * @param {string} title
   * @param {string} none what to say when there is nothing
   * @param {(item: T) => string} key
   * @param {Column<T>[]} columns the first is what the row is about
   */
  constructor(title, none, key, columns) {
    /** @type {KeyedList<T>} */
    this.list = new KeyedList(h("div", { class: "row-list", role: "list" }), key, () => new Line(columns));
    const tracks = `minmax(9rem, 1.7fr) repeat(${columns.length - 1}, minmax(5rem, 1fr))`;
    this.rows = h("div", { class: "rows program-rows", style: { "--columns": tracks } },
      rowsHead(columns.map((each) => each.label)), this.list.element);
    this.none = h("p", { class: "dim" }, none);
    this.more = h("p", { class: "dim small" });
    this.element = h("section", { class: "program-part", "aria-label": title }, h("h2", null, title), this.rows, this.none, this.more);
  }

  /** @param {T[]} items in their order; what is beyond the first fifty is counted */
  show(items) {
    this.list.show(items.slice(0, ROWS_MAX));
    this.rows.hidden = items.length === 0;
    this.none.hidden = items.length > 0;
    const left = Math.max(0, items.length - ROWS_MAX);
    this.more.hidden = left === 0;
    write(this.more, left === 0 ? "" : t("programs.more", { n: count(left) }));
  }
}

/**
 * One row.
 * @template T
 */
class Line {
  /** @param {Column<T>[]} columns */
  constructor(columns) {
    this.made = columns.map((each) => each.make());
    this.element = h("div", { class: "row", role: "listitem" }, h("div", { class: "row-line" },
      columns.map((each, at) => cell(each.label, at === 0 ? "name" : "fact", this.made[at]?.element).element)));
  }

  /** @param {T} item */
  update(item) {
    for (const each of this.made) each.show(item);
  }
}

/** @param {unknown} value */
export function number(value) {
  return typeof value === "number" ? count(whole(value)) : "";
}
