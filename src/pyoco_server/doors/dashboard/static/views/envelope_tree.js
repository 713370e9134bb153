// Any value of JSON, to be opened step by step. What is closed is not made, so that size and depth cost nothing.

import { h } from "../lib/dom.js";
import { movedTo, plain, webAddress } from "../lib/envelope.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { Digits } from "../lib/numbers.js";
import { isObject } from "../lib/run_facts.js";
import { addressOf, grown, moved, prose } from "./envelope_parts.js";

/** @typedef {import("./envelope_parts.js").Offer} Offer */

const NAME_MAX = 200;
/** A list of this many, at most, is open from the start. */
const OPEN_MAX = 20;

/**
 * The members of an object, or the items of a list, one below the other.
 * @param {Record<string, unknown> | unknown[]} value
 * @param {Offer} offer
 * @param {number} [depth]
 * @returns {HTMLElement}
 */
export function tree(value, offer, depth = 0) {
  const isList = Array.isArray(value);
  /** @type {[string, unknown][]} */
  const entries = isList ? value.map((item, at) => [String(at + 1), item]) : Object.entries(value);
  if (entries.length === 0) return h("p", { class: "dim" }, t("envelope.nothing"));
  const list = h("ul", { class: "env-tree" });
  const tail = grown(entries, list, ([name, item]) => h("li", null, branch(name, item, offer, depth)));
  return h("div", { class: "env-list" }, list, tail);
}

/**
 * A list, or the file in which it lies.
 * @param {unknown} value
 * @param {Offer} offer
 * @param {(rows: Record<string, unknown>[]) => HTMLElement} show
 * @returns {HTMLElement}
 */
export function listed(value, offer, show) {
  const file = movedTo(value);
  if (file !== null) return moved(file, offer);
  const rows = Array.isArray(value) ? value : [];
  if (rows.length === 0) return h("p", { class: "dim" }, t("envelope.nothing"));
  return rows.every(isObject) ? show(rows) : tree(rows, offer);
}

/**
 * @param {string} name
 * @param {unknown} value
 * @param {Offer} offer
 * @param {number} depth
 */
function branch(name, value, offer, depth) {
  const label = h("span", { class: "env-name", dir: "auto" }, plain(name).slice(0, NAME_MAX));
  const file = movedTo(value);
  if (file !== null) return h("div", { class: "env-leaf" }, label, moved(file, offer));
  if (value instanceof Digits || !(Array.isArray(value) || isObject(value))) {
    return h("div", { class: "env-leaf" }, label, leaf(value));
  }
  const size = Array.isArray(value) ? value.length : Object.keys(value).length;
  if (size === 0) return h("div", { class: "env-leaf" }, label, h("span", { class: "dim" }, t("envelope.nothing")));
  const words = t(Array.isArray(value) ? "envelope.items" : "envelope.members", { n: count(size) });
  const details = h("details", null, h("summary", null, label, h("span", { class: "dim small" }, words)));
  const fill = () => {
    if (details.open && details.childElementCount === 1) details.append(tree(value, offer, depth + 1));
  };
  details.addEventListener("toggle", fill);
  details.open = depth === 0 && size <= OPEN_MAX;
  fill();
  return details;
}

/** @param {unknown} value */
function leaf(value) {
  if (typeof value === "string") return webAddress(value) === null ? prose(value === "" ? "–" : value) : addressOf(value);
  if (value === true || value === false) return h("span", { class: "env-word" }, t(value ? "envelope.yes" : "envelope.no"));
  if (value === null) return h("span", { class: "dim" }, "–");
  return h("span", { class: "number" }, String(value));
}
