// What the views of envelopes are put together from. Every word in them is a pack's, or a stranger's behind it: it
// becomes text, or a link that tells nobody where it was followed from.

import { h } from "../lib/dom.js";
import { piecesOf, plain, share, webAddress } from "../lib/envelope.js";
import { count, percent } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { button } from "../lib/parts.js";

/** @typedef {import("../lib/dom.js").Child} Child */
/** Offers a file of the run; null: the run has none of this name. @typedef {(name: string) => HTMLElement | null} Offer */
/**
 * One column of a table.
 * @template T
 * @typedef {{ name: string, class?: string, show: (row: T) => Child }} Column
 */

const CHARACTERS_MAX = 20_000;
const PIECES_MAX = 2_000;
const STEP = 100;
const LINK_CHARACTERS_MAX = 300;

/**
 * A text as it is; a very long one is cut, and says so.
 * @param {unknown} value
 * @param {{ class?: string, marks?: boolean }} [how] marks: it was read from a picture
 */
export function prose(value, how = {}) {
  const whole = plain(value);
  const text = whole.slice(0, CHARACTERS_MAX);
  const cut = whole.length > text.length ? h("p", { class: "mark" }, t("cut", { n: count(whole.length - text.length) })) : null;
  return h("div", { class: `env-prose ${how.class ?? ""}` }, h("p", { dir: "auto" }, how.marks ? marked(text) : text), cut);
}

/** @param {string} text */
function marked(text) {
  const pieces = piecesOf(text);
  const rest = pieces.slice(PIECES_MAX).map((each) => each.text).join("");
  return [...pieces.slice(0, PIECES_MAX).map((each) => {
    if (each.kind === "plain") return each.text;
    if (each.kind === "doubt") return h("mark", { class: "env-doubt", title: t("envelope.ocr.doubt") }, each.text);
    return h("mark", { class: "env-unreadable", title: t("envelope.ocr.unreadable") }, each.text);
  }), rest];
}

/**
 * An address as a link, if it can be one.
 * @param {unknown} value
 */
export function addressOf(value) {
  const whole = plain(value);
  const words = whole.length > LINK_CHARACTERS_MAX ? `${whole.slice(0, LINK_CHARACTERS_MAX)}…` : whole;
  const href = webAddress(value);
  if (href === null) return h("bdi", { class: "env-address", title: whole.slice(0, 2000) }, words);
  return h("a", {
    class: "env-address", href, rel: "noreferrer noopener", target: "_blank", title: whole.slice(0, 2000), dir: "ltr",
  }, words);
}

/**
 * A share of 1 as a bar with its figure.
 * @param {unknown} value
 * @param {string} name
 */
export function bar(value, name) {
  const part = share(value);
  if (part === null) return h("span", { class: "dim" }, "–");
  // Always two digits of the share: 0.9994 is not all of it.
  const shown = part > 0.99 && part < 1 ? percent(0.99) : percent(part);
  return h("span", { class: "env-bar" },
    h("meter", { min: "0", max: "1", value: part, "aria-label": name }, shown),
    h("span", { class: "number" }, shown));
}

/** @param {boolean} isGood */
export function verdict(isGood) {
  return h("span", { class: `badge ${isGood ? "money-ok" : "money-bad"}` }, icon(isGood ? "completed" : "failed"),
    t(isGood ? "envelope.passed" : "envelope.failed"));
}

/**
 * As many as one looks at, and a button for more: a list of any length stays usable.
 * @template T
 * @param {T[]} items
 * @param {Element} into
 * @param {(item: T, at: number) => Node} make
 * @returns {HTMLElement | null} what stands below the list; null: all are shown
 */
export function grown(items, into, make) {
  let shown = 0;
  const tail = h("div", { class: "env-more" });
  const note = h("span", { class: "dim small", role: "status" });
  const more = button("", () => grow(), { icon: "down" });
  const grow = () => {
    const next = items.slice(shown, shown + STEP);
    const made = next.map((item, at) => make(item, shown + at));
    into.append(...made);
    const left = items.length - shown - next.length;
    const hadFocus = document.activeElement === more;
    shown += next.length;
    note.textContent = t("envelope.shown", { n: count(shown), all: count(items.length) });
    const label = more.querySelector("span");
    if (label) label.textContent = t("envelope.more", { n: count(Math.min(STEP, left)) });
    more.hidden = left === 0;
    if (left === 0 && hadFocus && into instanceof HTMLElement) {
      into.tabIndex = -1;
      into.focus({ preventScroll: true });
    }
  };
  grow();
  if (items.length <= STEP) return null;
  tail.append(more, note);
  return tail;
}

/**
 * A table; on a phone each line is a card.
 * @template T
 * @param {string} name
 * @param {Column<T>[]} columns
 * @param {T[]} rows
 */
export function table(name, columns, rows) {
  const body = h("tbody", { role: "rowgroup" });
  const head = h("tr", { role: "row" }, columns.map((each) =>
    h("th", { scope: "col", role: "columnheader", class: each.class ?? null }, each.name)));
  const tail = grown(rows, body, (row) => h("tr", { role: "row" }, columns.map((each) =>
    h("td", { role: "cell", class: each.class ?? null, "data-name": each.name }, h("div", null, each.show(row))))));
  return h("div", { class: "env-list" },
    h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": name },
      h("table", { class: "table env-table", role: "table", "aria-label": name }, h("thead", { role: "rowgroup" }, head), body)),
    tail);
}

/**
 * A part of the result, with a heading.
 * @param {string} title
 * @param {...Child} body
 */
export function part(title, ...body) {
  return h("section", { class: "env-part", "aria-label": title }, h("h3", null, title), ...body);
}

/**
 * In place of what was too large for the envelope.
 * @param {string} name
 * @param {Offer} offer
 */
export function moved(name, offer) {
  return h("p", { class: "env-moved" }, h("span", { class: "dim" }, t("envelope.moved")), " ",
    offer(name) ?? h("code", null, plain(name)));
}
