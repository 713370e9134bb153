// The way to every panel. It scrolls where it has no room, and shows that it does and where one is. On a phone it is behind
// a button that names the open panel.

import { h, put, write } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { href } from "../lib/router.js";
import { panels } from "../panels.js";

export class Menu {
  constructor() {
    this.nav = h("nav", { id: "menu", class: "menu" });
    this.here = h("span");
    this.opener = h("button", {
      type: "button", class: "button menu-opener", "aria-expanded": "false", "aria-controls": "menu",
      onclick: () => this.open(this.opener.getAttribute("aria-expanded") !== "true"),
    }, icon("menu"), this.here, icon("down"));
    this.element = h("div", { class: "menu-place", onkeydown: (/** @type {KeyboardEvent} */ event) => this.onKey(event) }, this.opener, this.nav);
    /** @type {Map<string, { link: HTMLAnchorElement, mark: HTMLElement }>} */
    this.entries = new Map();
    /** @type {Map<string, number>} */
    this.marks = new Map();
    this.current = "";
    this.nav.addEventListener("scroll", () => this.tellEnds(), { passive: true });
    new ResizeObserver(() => this.center()).observe(this.nav);
  }

  /** @param {boolean} wanted */
  open(wanted) {
    this.element.classList.toggle("is-open", wanted);
    this.opener.setAttribute("aria-expanded", String(wanted));
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key !== "Escape" || this.opener.getAttribute("aria-expanded") !== "true") return;
    event.preventDefault();
    this.open(false);
    this.opener.focus();
  }

  draw() {
    this.nav.setAttribute("aria-label", t("nav"));
    this.entries.clear();
    for (const panel of panels) {
      const mark = h("span", { class: "menu-mark number", hidden: true });
      this.entries.set(panel.id, { link: h("a", { href: href(panel.id) }, t(panel.title), mark), mark });
    }
    put(this.nav, ...[...this.entries.values()].map((entry) => entry.link));
    for (const [id, marked] of this.marks) this.mark(id, marked);
  }

  /** @param {string} panel which one is open */
  show(panel) {
    for (const [id, { link }] of this.entries) {
      if (id === panel) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.current = panel;
    const shown = panels.find((each) => each.id === panel);
    write(this.here, shown ? t(shown.title) : t("nav"));
    this.open(false);
    this.center();
  }

  /**
   * A number beside a panel's name; none for 0.
   * @param {string} panel
   * @param {number} marked
   */
  mark(panel, marked) {
    this.marks.set(panel, marked);
    const mark = this.entries.get(panel)?.mark;
    if (mark === undefined) return;
    mark.hidden = marked === 0;
    write(mark, marked === 0 ? "" : marked > 999 ? "999+" : count(marked));
    this.center();
  }

  /** Only the menu scrolls, not the page. */
  center() {
    const link = this.entries.get(this.current)?.link;
    if (link) this.nav.scrollLeft = link.offsetLeft - (this.nav.clientWidth - link.offsetWidth) / 2;
    this.tellEnds();
  }

  /** Which ends are cut off: they fade out. */
  tellEnds() {
    const { scrollLeft, scrollWidth, clientWidth } = this.nav;
    this.nav.classList.toggle("more-before", scrollLeft > 1);
    this.nav.classList.toggle("more-after", scrollLeft + clientWidth < scrollWidth - 1);
  }
}
