// The search box of every page. What it finds is the list of runs, with the words in the address.

import { h } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { filterHref, idForm, readFilter, withFilter } from "../lib/run_filter.js";
import { href } from "../lib/router.js";

/** @typedef {import("../lib/router.js").Place} Place */

const CHARACTERS_MAX = 200;
/** Whoever types has paused, and wants to see what there is. */
const TYPED_MS = 400;

/** Enter was pressed on the beginning of an id: if it is that of one run only, it is opened. @type {string | null} */
let entered = null;

/**
 * The list has come to show these runs.
 * @param {import("../lib/run_filter.js").RunFilter} filter
 * @param {import("../lib/wire.js").RunSummary[]} rows
 * @param {boolean} complete
 */
export function openOnlyRun(filter, rows, complete) {
  if (entered === null || entered !== filter.q) return;
  const [only] = complete && rows.length === 1 ? rows : [];
  if (only?.run_id.startsWith(entered.toLowerCase())) location.hash = href("runs", [only.run_id]);
  entered = null;
}

export class SearchBox {
  /**
   * @param {() => Place} place where one is
   * @param {(address: string) => void} replace show another list in the place of this one, as one step back
   */
  constructor(place, replace) {
    this.place = place;
    this.replace = replace;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.typed = undefined;
    this.element = h("form", { class: "top-search", role: "search", onsubmit: (/** @type {Event} */ event) => this.submit(event) });
    this.input = h("input", { type: "search" });
  }

  /** Anew, in the language of now. */
  draw() {
    const { value } = this.input;
    this.input = h("input", {
      id: "search", type: "search", placeholder: t("search"), "aria-label": t("search.label"), maxlength: String(CHARACTERS_MAX),
      spellcheck: "false", autocomplete: "off", "aria-keyshortcuts": "/", oninput: () => this.onInput(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.onKey(event),
    });
    this.input.value = value;
    this.element.replaceChildren(icon("search"), this.input, h("kbd", { "aria-hidden": "true" }, "/"));
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  /** What the list is searched for is what the box says, unless somebody is typing there. */
  show() {
    if (document.activeElement === this.input) return;
    const place = this.place();
    this.input.value = place.panel === "runs" && place.rest.length === 0 ? (readFilter(place.query).q ?? "") : "";
  }

  forget() {
    clearTimeout(this.typed);
    entered = null;
    this.input.value = "";
  }

  /** The other filters stay in force: their chips say so. */
  address() {
    const place = this.place();
    const filter = this.isList(place) ? readFilter(place.query) : {};
    return filterHref(withFilter(filter, "q", this.input.value.trim()));
  }

  /** @param {Place} place */
  isList(place) {
    return place.panel === "runs" && place.rest.length === 0;
  }

  /** @param {Event} event */
  submit(event) {
    event.preventDefault();
    clearTimeout(this.typed);
    const text = this.input.value.trim();
    if (text === "" && !this.isList(this.place())) return;
    if (idForm(text) === "whole") {
      this.input.value = "";
      location.hash = href("runs", [text.toLowerCase()]);
      return;
    }
    entered = idForm(text) === "part" ? text : null;
    if (location.hash === this.address()) this.replace(this.address());
    else location.hash = this.address();
  }

  /** While the list is open it follows what is typed; another page is left by Enter only. */
  onInput() {
    entered = null;
    clearTimeout(this.typed);
    if (!this.isList(this.place())) return;
    this.typed = setTimeout(() => {
      if (this.isList(this.place())) this.replace(this.address());
    }, TYPED_MS);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key !== "Escape" || event.isComposing) return;
    event.preventDefault();
    this.input.blur();
  }
}
