// What the panels of workers, queues, dead letters and wheels share.

import { Refused } from "../lib/api.js";
import { width } from "../lib/fleet.js";
import { h, put, write } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { nothing, refill, since, skeleton } from "../lib/parts.js";
import { href } from "../lib/router.js";

/** @typedef {import("../lib/dom.js").Child} Child */

const TAGS_SHOWN = 6;

/**
 * One value of a row. Its name is read aloud, shown on a narrow screen, and stands above the column on a wide one.
 * @param {string} label
 * @param {string} name the class of the cell
 * @param {...Child} children
 */
export function cell(label, name, ...children) {
  const value = h("div", { class: "cell-value" }, ...children);
  return { element: h("div", { class: `cell cell-${name}` }, h("span", { class: "cell-label" }, label), value), value };
}

/**
 * The names of the columns, for the eye only: each cell carries its own.
 * @param {string[]} labels
 */
export function rowsHead(labels) {
  return h("div", { class: "rows-head", "aria-hidden": "true" }, labels.map((label) => h("span", null, label)));
}

/** Part of a whole as a bar with its numbers beside it. */
export class Meter {
  /** @param {string} kind a class: what is measured, which gives the colour */
  constructor(kind) {
    this.bar = h("div", { class: "meter-bar" });
    this.text = h("span", { class: "number" });
    this.element = h("div", { class: `meter ${kind}` }, h("div", { class: "meter-track", "aria-hidden": "true" }, this.bar), this.text);
  }

  /**
   * @param {number} value
   * @param {number} most
   * @param {string | null} text null: what stands beside the bar is somebody else's
   */
  show(value, most, text) {
    this.bar.style.setProperty("inline-size", width(value, most));
    this.element.classList.toggle("full", most > 0 && value >= most);
    if (text !== null) write(this.text, text);
  }
}

/**
 * @param {string} panel
 * @param {string[]} tags
 * @returns {HTMLElement[]}
 */
export function tagLinks(panel, tags) {
  const shown = tags.slice(0, TAGS_SHOWN).map((tag) => h("a", {
    class: "tag-note tag-link", href: href(panel, [], { tag }), title: t("fleet.tag_title", { tag }),
  }, tag));
  const rest = tags.slice(TAGS_SHOWN);
  return rest.length === 0 ? shown
    : [...shown, h("span", { class: "dim small", title: rest.join(", ").slice(0, 2000) }, `+${count(rest.length)}`)];
}

/**
 * Names and values that stay in place: a value is made anew only when what it was made from has changed.
 * @param {HTMLDListElement} element
 * @param {[string, unknown, () => Child][]} pairs name, what it is made from (null leaves it out), and how
 */
export function liveFacts(element, pairs) {
  const shown = pairs.filter(([, made]) => made !== null && made !== undefined && made !== "");
  const names = shown.map(([name]) => name).join("\n");
  if (element.dataset.names !== names) {
    element.dataset.names = names;
    put(element, ...shown.map(([name]) => h("div", null, h("dt", null, name), h("dd"))));
  }
  shown.forEach(([, made, make], at) => {
    const value = /** @type {Element} */ (element.children[at]?.lastElementChild);
    refill(value, made, () => [make()].flat());
  });
}

/**
 * An age that is moved on without being made anew.
 * @param {Element} element
 * @param {number | null | undefined} at
 */
export function showSince(element, at) {
  refill(element, at ?? null, () => [since(at)]);
}

let openers = 0;

/**
 * A button, and the region below it that it opens; the region is closed at first.
 * @param {() => void} onclick
 * @param {...Child} children of the button
 */
export function opener(onclick, ...children) {
  openers += 1;
  const id = `detail-${openers}`;
  const detail = h("div", { id, class: "row-detail", hidden: true });
  const opens = h("button", { "aria-controls": id, "aria-expanded": "false", type: "button", class: "opener", onclick },
    icon("down"), ...children);
  return { button: opens, detail };
}

/** A region that shows a shape until something has come, then that. */
export class Region {
  constructor() {
    this.element = h("div", { class: "region", "aria-busy": "true" }, skeleton(6));
    this.kind = "";
  }

  /**
   * @param {string} kind what is shown; another kind takes its place
   * @param {() => Child[]} make called when the kind is new
   */
  show(kind, make) {
    if (this.kind === kind) return;
    this.kind = kind;
    this.element.removeAttribute("aria-busy");
    put(this.element, ...make());
  }

  /**
   * Do the work; what the gateway refuses for good is told here, where it was asked for.
   * @param {() => Promise<unknown>} work
   */
  async guard(work) {
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Refused) || error.status >= 500 || error.status === 401 || error.status === 403) throw error;
      this.show(`refused ${error.words}`, () => [nothing(t("fleet.refused"), h("p", null, error.words))]);
    }
  }
}

/**
 * The address changes without a step in the history: opening and closing a row is no place to go back to.
 * @param {string} address
 */
export function replacePlace(address) {
  if (location.hash !== address) history.replaceState(history.state, "", address);
}

/**
 * Twice: rows that were not on the screen take their true height only when they come near it.
 * @param {Element | null} element
 */
export function bringIntoView(element) {
  const bring = () => element?.scrollIntoView({ block: "nearest" });
  bring();
  requestAnimationFrame(bring);
}

const TYPING_MS = 350;

/**
 * Wait until nobody has typed for a moment, or Enter is pressed; a word that is still being composed is none yet.
 * @param {(text: string) => void} done
 * @param {() => void} [begun] at each letter, at once
 * @returns {{ listen: import("../lib/dom.js").Props, settle: () => void, cancel: () => void }} listen: for the field;
 *   settle: do not wait any longer; cancel: what was typed is of no use any more
 */
export function afterTyping(done, begun) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  /** @type {string | null} */
  let typed = null;
  const cancel = () => {
    clearTimeout(timer);
    typed = null;
  };
  const settle = () => {
    const text = typed;
    cancel();
    if (text !== null) done(text);
  };
  const heard = (/** @type {Event} */ event) => {
    cancel();
    begun?.();
    if (event instanceof InputEvent && event.isComposing) return;
    typed = /** @type {HTMLInputElement} */ (event.target).value.trim();
    timer = setTimeout(settle, TYPING_MS);
  };
  const pressed = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !event.isComposing) settle();
  };
  return { listen: { oninput: heard, oncompositionend: heard, onkeydown: pressed }, settle, cancel };
}
